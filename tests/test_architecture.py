"""Who may import whom, kept by a fresh interpreter: the gateway stays light. (import-linter keeps the rest.)"""

import subprocess
import sys

import pytest

HEAVY = ("sqlalchemy", "sqlmodel", "torch", "boto3", "vllm", "transformers", "stripe", "peft")


@pytest.mark.parametrize("module", ["data_plane.gateway.app", "data_plane.gateway.server"])
def test_the_gateway_starts_without_the_heavy_packages(module):
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
