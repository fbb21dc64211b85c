"""Starts the one-machine stack's embedded S3 server alone, to store a benchmark's adapters."""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from pydantic import SecretStr

from core.settings import S3Settings
from tenora.stack import embedded_servers
from tenora.stack.program import free_port
from tests.conftest import running


@contextlib.contextmanager
def embedded_s3(home: Path) -> Iterator[S3Settings]:
    """Serve a new bucket under ``home`` until the block ends."""
    secret = secrets.token_hex(16)
    server = embedded_servers.s3(
        home, home, port=free_port(), access_key="benchmarks", secret_key=secret, bucket="tenora"
    )
    with running(server.program):
        yield S3Settings(s3_endpoint=server.url, s3_access_key="benchmarks", s3_secret_key=SecretStr(secret))
