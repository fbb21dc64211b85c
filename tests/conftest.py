"""Fixtures for every test: real Postgres, Valkey and S3, started once for the session from the embedded servers."""

import gc
import os
import secrets
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3.session
import pytest
import redis as redis_client
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from hypothesis import is_hypothesis_test
from hypothesis import settings as hypothesis_settings
from pydantic import SecretStr
from xdist.scheduler import LoadFileScheduling

from control_plane import database_roles
from core import db
from core.settings import PostgresSettings, RedisSettings, S3Settings
from tenora.stack import embedded_servers
from tenora.stack.program import Program, free_port
from tests.fixtures import examples  # noqa: F401 (registers the profiles)
from tests.fixtures.databases import KEPT_CONNECTIONS, RecycledDatabase, create_database, temporary_database
from tests.fixtures.fork_server import ForkedProcess, start_program
from tests.fixtures.least_privilege import POSTGRES_ROLES, REDIS_USERS
from tests.fixtures.server_data import server_data_folder

_HAS_GPU = Path("/proc/driver/nvidia/version").exists()
CLIENTS = Path(__file__).parent.parent / ".clients"
# Each TLS context reads all certificates that it trusts, 25 ms of processor time. Tests and their processes speak to
# this machine alone, so they trust one certificate, whose key is gone.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "fixtures" / "no_authority.pem")
TLS = ssl.create_default_context()  # for the HTTP clients that tests make by the thousand
LEFT_OUT = {
    "soak": "{} soak tests deselected: `make soak` runs them",
    "functional": "{} functional tests deselected: `make test` runs them",
    "gpu": "{} GPU tests deselected: this machine has no CUDA device",
    "ray": "{} tests of Ray deselected: `make test-ray` runs them",
    "clients": "{} client tests deselected: `make test-clients` installs them",
    "deploy": "{} tests of deploy/ deselected: `make test-deploy` runs them",
    "browser": "{} tests in a browser deselected: `make test-browser` runs them",
    "prometheus": "{} tests of Prometheus deselected: `make test-prometheus` runs them",
    "stripe_live": "{} tests at Stripe deselected: `pytest -m stripe_live`, TENORA_STRIPE_LIVE_TEST_KEY set",
}
_left_out = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--suite",
        choices=["functional", "soak", "all"],
        default="functional",
        help="functional is `make test`, with 25 examples of each property; soak is `make soak`, the tests marked soak"
        " or quiet and each property with all its examples",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load the profile before the test modules are imported, which read it."""
    quick = config.getoption("suite") == "functional"
    hypothesis_settings.load_profile("quick" if quick else "thorough")
    config.stash[_left_out] = {}


class BySharedServers(LoadFileScheduling):
    """With ``pytest -n`` one worker runs a whole file, whose tests share servers, or all files of a scope below."""

    def _split_scope(self, nodeid: str) -> str:
        shared = (scope for prefix, scope in ONE_SCOPE.items() if nodeid.startswith(prefix))
        return next(shared, super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log) -> BySharedServers:
    return BySharedServers(config, log)


# Files that share something expensive run in one worker, by the beginning of their paths.
ONE_SCOPE = {
    "tests/e2e/": "a real engine",
    # torch and vLLM, which take 15 s of processor time to import
    "tests/unit/adapters/validation/": "torch",
    "tests/unit/data_plane/engine/": "torch",
    "tests/unit/data_plane/gateway/api/": "torch",
    "tests/unit/fixtures/": "torch",
    "tests/unit/tenora/training/": "torch",
    "tests/integration/adapters/test_vllm_resolver.py": "torch",
    "tests/integration/data_plane/engine/middleware/": "torch",
    "tests/integration/data_plane/engine/test_kv_meter.py": "torch",
    "tests/integration/tenora/stack/test_base_model.py": "torch",
}


def _is_soak(item: pytest.Item) -> bool:
    return bool(item.get_closest_marker("soak") or item.get_closest_marker("quiet"))


def _is_property(item: pytest.Item) -> bool:
    """Whether Hypothesis chooses what the test tries; a test that runs a state machine itself is marked."""
    return bool(item.get_closest_marker("hypothesis")) or is_hypothesis_test(getattr(item, "obj", None))


def _asks_for(marker: str, config: pytest.Config) -> bool:
    """Only on demand; those at Stripe need a key too, since they leave the machine and create objects in somebody's
    account.
    """
    has_key = marker != "stripe_live" or os.environ.get("TENORA_STRIPE_LIVE_TEST_KEY")
    return marker in config.option.markexpr and bool(has_key)


def _turn(item: pytest.Item) -> int:
    """The order in which workers take files: the longest first, so that none is left over at the end."""
    prefixes = (*ONE_SCOPE, "tests/chaos/", "tests/integration/")
    return next((turn for turn, prefix in enumerate(prefixes) if item.nodeid.startswith(prefix)), len(prefixes))


def _reason_to_leave_out(item: pytest.Item, suite: str) -> str | None:
    if item.get_closest_marker("gpu") and not _HAS_GPU:
        return "gpu"
    client = item.get_closest_marker("clients")
    if client is not None and not (CLIENTS / client.args[0]).exists():
        return "clients"
    for marker in ("browser", "deploy", "prometheus", "ray", "stripe_live"):
        if item.get_closest_marker(marker) and not _asks_for(marker, item.config):
            return marker
    if suite == "functional" and _is_soak(item):
        return "soak"
    if suite == "soak" and not (_is_soak(item) or _is_property(item) or item.get_closest_marker("timed")):
        return "functional"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out the tests of the other suite, and those that need a GPU or a client that this machine does not have."""
    for item in items:
        if "promised_s" in getattr(item, "fixturenames", ()):
            item.add_marker("timed")
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)
    reasons = {item: _reason_to_leave_out(item, config.getoption("suite")) for item in items}
    config.stash[_left_out] = dict(Counter(reason for reason in reasons.values() if reason))
    if left_out := [item for item in items if reasons[item]]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not reasons[item]]


def pytest_collection_finish() -> None:
    """Modules and collected tests live to the end, millions of objects: a garbage collector that looked through all of
    them would stop every thread here for seconds, callers and the proxies before replicas too.
    """
    if "torch" in sys.modules:
        raise pytest.UsageError("a test module imports torch when it is collected; use tests.fixtures.late_import")
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of ``pytest -n`` reports to the process that prints the summary and collects nothing itself."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash[_left_out]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    """All workers collect the same tests, so one worker's counts are those of the run."""
    node.config.stash[_left_out] = getattr(node, "workeroutput", {}).get("left_out", {}) or node.config.stash[_left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for reason, count in sorted(config.stash[_left_out].items()):
        terminalreporter.write_line(LEFT_OUT[reason].format(count), yellow=True)


def wait_until(condition, *, timeout_s: float = 20, what: str = "condition"):
    """Poll a condition every 20 ms and return its first true value; fail when it does not come in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail(f"{what} did not come within {timeout_s} s")


@contextmanager
def running(program: Program) -> Iterator[subprocess.Popen | ForkedProcess]:
    """A program from ready to stopped."""
    process = start_program(program)
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
def server_logs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def server_data() -> Iterator[Path]:
    with server_data_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def postgres_server(server_data, server_logs) -> Iterator[str]:
    """SQLAlchemy URL of a running Postgres with an empty database ``tenora``."""
    server = embedded_servers.postgres(
        server_data / "pg",
        server_logs,
        port=free_port(),
        password=secrets.token_hex(8),
        roles=POSTGRES_ROLES,
        # These databases need not outlive a power cut, and there are hundreds that live for a second.
        options=tuple(
            part
            for option in ("fsync=off", "full_page_writes=off", "max_wal_size=128MB", "autovacuum=off", "jit=off")
            for part in ("-c", option)
        ),
    )
    with running(server.program):
        yield server.url


@contextmanager
def running_valkey(home: Path, logs: Path | None = None) -> Iterator[str]:
    """The URL of an empty Valkey with the users of all processes."""
    server = embedded_servers.valkey(
        home / "valkey", logs or home, port=free_port(), password=secrets.token_hex(8), users=REDIS_USERS
    )
    with running(server.program):
        yield server.url


@pytest.fixture(scope="session")
def redis_server(server_data, server_logs) -> Iterator[str]:
    with running_valkey(server_data, server_logs) as url:
        yield url


@pytest.fixture(scope="session")
def s3_settings(server_data, server_logs) -> Iterator[S3Settings]:
    server = embedded_servers.s3(
        server_data / "s3",
        server_logs,
        port=free_port(),
        access_key="tests",
        secret_key="secret-of-tests",
        bucket="tenora",
    )
    with running(server.program):
        yield S3Settings(s3_endpoint=server.url, s3_access_key="tests", s3_secret_key=SecretStr("secret-of-tests"))


@pytest.fixture(scope="session", autouse=True)
def _one_boto3_session() -> Iterator[None]:
    """With a session of its own each bucket would read S3's description again, 0.15 s of processor time."""
    session = boto3.session.Session()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boto3.session, "Session", lambda: session)
        yield


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


@pytest.fixture
def promised_s(request: pytest.FixtureRequest) -> Callable[[float], float]:
    """The seconds that something may take: as promised in `make soak`, which runs these tests alone, and four times as
    many in `make test`, which has to pass while other processes keep the machine busy.
    """
    factor = 4 if request.config.getoption("suite") == "functional" else 1
    return lambda seconds: factor * seconds


def alembic_config(settings: PostgresSettings) -> Config:
    config = Config(Path(__file__).parent.parent / "migrations" / "alembic.ini")
    config.attributes["settings"] = settings
    return config


@pytest.fixture(scope="session")
def migrated_template(postgres_server) -> str:
    """Name of a database built by the migrations, to be copied."""
    settings = create_database(postgres_server, "migrated")
    command.upgrade(alembic_config(settings), "head")
    engine = db.connect(settings)
    assert database_roles.grant_privileges(engine) == []
    engine.dispose()
    return "migrated"


@pytest.fixture(scope="session")
def recycled_database(postgres_server, migrated_template) -> Iterator[RecycledDatabase]:
    database = RecycledDatabase(postgres_server, migrated_template)
    yield database
    database.close()


@pytest.fixture
def postgres_settings(recycled_database) -> PostgresSettings:
    """A migrated database for the test alone, empty."""
    return recycled_database.emptied()


@pytest.fixture(scope="module")
def module_postgres_settings(postgres_server, migrated_template) -> Iterator[PostgresSettings]:
    """A migrated database that the tests of a module share."""
    with temporary_database(postgres_server, migrated_template) as settings:
        yield settings


@pytest.fixture(scope="session")
def kept_engine() -> Iterator[Callable[[PostgresSettings], sa.Engine]]:
    """One engine for all tests with the same database. SQLAlchemy keeps compiled statements with an engine: to compile
    them again, and to connect again, took half of the processor time of a test of billing.
    """
    kept: dict[str, sa.Engine] = {}

    def end() -> None:
        while kept:
            kept.popitem()[1].dispose()

    def engine_of(settings: PostgresSettings) -> sa.Engine:
        dsn = f"{settings.postgres_dsn}?application_name={KEPT_CONNECTIONS}"
        if dsn not in kept:
            end()
            kept[dsn] = db.connect(settings.model_copy(update={"postgres_dsn": dsn}))
        return kept[dsn]

    yield engine_of
    end()


@pytest.fixture
def engine(postgres_settings, kept_engine) -> sa.Engine:
    """An engine on the test's own migrated database."""
    return kept_engine(postgres_settings)
