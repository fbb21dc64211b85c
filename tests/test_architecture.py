"""The gateway stays light: a fresh interpreter that imports it loads neither SQL nor models.

import-linter keeps the other rules about imports.
"""

import subprocess
import sys

import pytest

HEAVY = (
    "sqlalchemy", "sqlmodel", "psycopg", "torch", "numpy", "boto3", "vllm", "transformers", "stripe", "peft",
)  # fmt: skip


@pytest.mark.parametrize(
    "module", ["data_plane.gateway.app", "data_plane.gateway.server", "data_plane.gateway.http_protocol"]
)
def test_the_gateway_starts_without_the_heavy_packages(module):
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
