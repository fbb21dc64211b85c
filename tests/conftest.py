"""Fixtures for every test: real Postgres, Valkey and S3, started once for the session from the embedded servers."""

import gc
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import redis as redis_client
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from hypothesis import settings as hypothesis_settings
from pydantic import SecretStr
from xdist.scheduler import LoadFileScheduling

from core import db
from core.settings import PostgresSettings, RedisSettings, S3Settings
from tenora.stack import embedded_servers
from tenora.stack.program import Program, free_port

# How long one example takes says more of the machine's other work than of the code.
hypothesis_settings.register_profile("tenora", deadline=None)
hypothesis_settings.load_profile("tenora")


_HAS_GPU = Path("/proc/driver/nvidia/version").exists()
_without_gpu = pytest.StashKey[int]()
CLIENTS = Path(__file__).parent.parent / ".clients"
_without_clients = pytest.StashKey[int]()


class BySharedServers(LoadFileScheduling):
    """With ``pytest -n`` one worker runs a whole file, whose tests share servers, and all of tests/e2e, an engine."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/e2e" if nodeid.startswith("tests/e2e/") else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log) -> BySharedServers:
    return BySharedServers(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out what needs a GPU or a client that is not here; the summary says how many tests that were."""
    gpu = [] if _HAS_GPU else [item for item in items if item.get_closest_marker("gpu")]
    marked = ((item, item.get_closest_marker("clients")) for item in items)
    clients = [item for item, mark in marked if mark is not None and not (CLIENTS / mark.args[0]).exists()]
    config.stash[_without_gpu], config.stash[_without_clients] = len(gpu), len(clients)
    if needy := gpu + clients:
        config.hook.pytest_deselected(items=needy)
        items[:] = [item for item in items if item not in needy]


def pytest_collection_finish() -> None:
    """Modules and collected tests live to the end, millions of objects: a garbage collector that looked through all of
    them would stop every thread here for seconds, callers and the proxies before replicas too.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(_without_gpu, 0):
        terminalreporter.write_line(f"{count} GPU tests deselected: this machine has no CUDA device", yellow=True)
    if count := config.stash.get(_without_clients, 0):
        terminalreporter.write_line(f"{count} client tests deselected: `make test-clients` installs them", yellow=True)


def wait_until(condition, *, timeout_s: float = 20, what: str = "condition"):
    """Poll a condition every 20 ms and return its first true value; fail when it does not come in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail(f"{what} did not come within {timeout_s} s")


@contextmanager
def running(program: Program) -> Iterator[subprocess.Popen]:
    """A program from ready to stopped."""
    process = program.start()
    try:
        wait_until(
            lambda: program.ready() or (process.poll() is not None and _died(program)),
            timeout_s=program.ready_s,
            what=program.name,
        )
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(program.stop_signal)
        try:
            process.wait(program.stop_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _died(program: Program) -> bool:
    raise AssertionError(f"{program.name} died: {program.log.read_text()[-3000:]}")


@pytest.fixture(scope="session")
def servers_home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def postgres_server(servers_home) -> Iterator[str]:
    """SQLAlchemy URL of a running Postgres with an empty database ``tenora``."""
    server = embedded_servers.postgres(
        servers_home / "pg",
        servers_home,
        port=free_port(),
        password=secrets.token_hex(8),
        options=("-c", "fsync=off"),  # these databases need not outlive a power cut, and there are hundreds
    )
    with running(server.program):
        yield server.url


@pytest.fixture(scope="session")
def redis_server(servers_home) -> Iterator[str]:
    server = embedded_servers.valkey(
        servers_home / "valkey", servers_home, port=free_port(), password=secrets.token_hex(8)
    )
    with running(server.program):
        yield server.url


@pytest.fixture(scope="session")
def s3_settings(servers_home) -> Iterator[S3Settings]:
    server = embedded_servers.s3(
        servers_home / "s3",
        servers_home,
        port=free_port(),
        access_key="tests",
        secret_key="secret-of-tests",
        bucket="tenora",
    )
    with running(server.program):
        yield S3Settings(s3_endpoint=server.url, s3_access_key="tests", s3_secret_key=SecretStr("secret-of-tests"))


@pytest.fixture
def redis_settings(redis_server) -> Iterator[RedisSettings]:
    """An emptied Valkey."""
    client = redis_client.Redis.from_url(redis_server)
    client.flushall()
    client.close()
    return RedisSettings(redis_url=redis_server)


@pytest.fixture
def redis(redis_settings) -> Iterator[redis_client.Redis]:
    """A synchronous client of an emptied Valkey."""
    with redis_client.Redis.from_url(redis_settings.redis_url) as client:
        yield client


def alembic_config(settings: PostgresSettings) -> Config:
    config = Config(Path(__file__).parent.parent / "migrations" / "alembic.ini")
    config.attributes["settings"] = settings
    return config


def create_database(server_url: str, name: str, template: str = "template0") -> PostgresSettings:
    with psycopg.connect(server_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    return PostgresSettings(postgres_dsn=server_url.rsplit("/", 1)[0] + f"/{name}")


@pytest.fixture(scope="session")
def migrated_template(postgres_server) -> str:
    """Name of a database built by the migrations, to be copied."""
    command.upgrade(alembic_config(create_database(postgres_server, "migrated")), "head")
    return "migrated"


@pytest.fixture
def postgres_settings(postgres_server, migrated_template) -> PostgresSettings:
    """A migrated database of the test's own: what commits here, no other test sees."""
    return create_database(postgres_server, f"test_{secrets.token_hex(6)}", migrated_template)


@pytest.fixture
def engine(postgres_settings) -> Iterator[sa.Engine]:
    """An engine on the test's own migrated database."""
    engine = db.connect(postgres_settings)
    yield engine
    engine.dispose()
