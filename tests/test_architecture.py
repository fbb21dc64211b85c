"""Processes and commands start light: a fresh interpreter that imports one loads no library that it may never use.

import-linter keeps the other rules about imports.
"""

import subprocess
import sys

import pytest

MODELS = ("torch", "vllm", "transformers", "peft", "numpy")
SQL = ("sqlalchemy", "sqlmodel", "psycopg")
GATEWAY = (*MODELS, *SQL, "boto3", "stripe")
WITHOUT = {
    "data_plane.gateway.app": GATEWAY,
    "data_plane.gateway.server": GATEWAY,
    "data_plane.gateway.http_protocol": GATEWAY,
    "control_plane.app": (*MODELS, "alembic", "reportlab", "stripe", "aiohttp"),
    "control_plane.worker": (*MODELS, "alembic", "reportlab", "stripe", "aiohttp"),
    "control_plane.operations": (*MODELS, "alembic", "reportlab", "stripe", "boto3", "litestar", "redis"),
    "billing.worker": (*MODELS, "alembic", "reportlab", "stripe", "boto3", "litestar"),
    "tenora.client": (*MODELS, *SQL, "httpx", "click", "rich", "pydantic", "msgspec"),
    "tenora.cli": (*MODELS, *SQL, "redis", "httpx", "pydantic", "rich"),
}


@pytest.mark.parametrize("module", WITHOUT)
def test_a_process_or_a_command_starts_without_libraries_that_it_may_never_use(module):
    code = f"import sys, {module}; print([name for name in {WITHOUT[module]!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
