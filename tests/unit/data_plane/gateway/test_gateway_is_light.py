"""The hot path's process loads neither SQL nor models."""

import subprocess
import sys

HEAVY = ("sqlalchemy", "sqlmodel", "torch", "boto3", "vllm", "transformers", "peft", "numpy", "stripe", "psycopg")


def test_importing_the_gateway_loads_nothing_heavy():
    program = (
        "import sys, data_plane.gateway.app, data_plane.gateway.server, data_plane.gateway.http_protocol\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
