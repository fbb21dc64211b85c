"""Starts the one-machine stack's embedded S3 server alone, to store a benchmark's adapters."""

import contextlib
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import SecretStr

from core.settings import S3Settings
from tenora.stack import embedded_servers
from tenora.stack.program import free_port


@contextlib.contextmanager
def embedded_s3(home: Path) -> Iterator[S3Settings]:
    """Serve a new bucket under ``home`` until the block ends. Raises RuntimeError when the server does not start."""
    home.mkdir(parents=True, exist_ok=True)
    secret = secrets.token_hex(16)
    server = embedded_servers.s3(
        home, home, port=free_port(), access_key="benchmarks", secret_key=secret, bucket="tenora"
    )
    process = server.program.start()
    try:
        deadline = time.monotonic() + server.program.ready_s
        while not server.program.ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"S3 did not start; see {server.program.log}")
            time.sleep(0.05)
        yield S3Settings(s3_endpoint=server.url, s3_access_key="benchmarks", s3_secret_key=SecretStr(secret))
    finally:
        process.send_signal(server.program.stop_signal)
        try:
            process.wait(server.program.stop_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
