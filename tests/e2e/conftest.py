"""Two real vLLMs that these tests share, one after the other: that of a single replica, and that of the whole platform
as a new user starts it, `tenora up --detach` in a separate home.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from tenora.settings import StackSettings
from tenora.stack.base_model import MODEL_ID, materialize
from tenora.stack.daemon import run_folder
from tenora.stack.program import free_port
from tenora.stack.secrets_file import load_ports
from tenora.stack.status import read_status
from tests.conftest import wait_until
from tests.fixtures.engine.isolation_judge import References
from tests.fixtures.engine.mixed_batches import ask_references
from tests.fixtures.engine.real_engine import BASE, RealEngine, compiled
from tests.fixtures.engine.real_replica import RealReplica, RealRoom, real_replica
from tests.fixtures.processes import sample

REPOSITORY = Path(__file__).parent.parent.parent
TENORA = (sys.executable, "-m", "tenora")
LIMITS = {
    "requests_per_minute": 6000,
    "tokens_per_minute": 6_000_000,
    "concurrent_requests": 128,
    "kv_pages": 4096,
    "tokens_per_month": 100_000_000,
    "context_tokens": 2048,
    "output_tokens": 1024,
    "adapters": 16,
    "adapter_rank": 16,
    "adapter_bytes": 64 << 20,
}
PRICES = {
    "input_nanos": 50_000_000,
    "cached_input_nanos": 10_000_000,
    "output_nanos": 150_000_000,
    "kv_page_second_nanos": 20_000_000,
}
"""So that any use is at least a cent: no invoice is over $0.00."""


LOG_CHARACTERS = 4_000
TIMEOUT_S = 1_800
SLOTS, MEMORY, ADAPTERS = 8, 10, 16
"""Of the replica alone: fewer slots than adapters fit its memory, and less memory than there are adapters."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The replica's tests after all that need none, then those with an engine of their own, then the platform's: none
    runs under the others' tests. Where several workers share the tests, these are the longest of any worker and come
    first. Each has time for the start of an engine on a slow and busy machine.
    """
    here, shared = Path(__file__).parent, hasattr(config, "workerinput")

    def turn(item: pytest.Item) -> int:
        fixtures = getattr(item, "fixturenames", ())
        return ("no_replica" in fixtures) + ("platform" in fixtures)

    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
    items.sort(key=lambda item: (item.path.is_relative_to(here) != shared, turn(item)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failure on the platform shows the ends of its programs' logs."""
    report = yield
    if report.failed and (platform := getattr(item, "funcargs", {}).get("platform")):
        for log in sorted((Path(platform.environment["TENORA_HOME"]) / "logs").glob("*.log")):
            report.sections.append((log.name, log.read_text(errors="replace")[-LOG_CHARACTERS:]))
    return report


@dataclass(frozen=True)
class Platform:
    """A running stack, as its own commands see it. ``started_in_s``: from `tenora up` until it was ready."""

    environment: dict[str, str]
    started_in_s: float = 0

    def return_s(self, promised_s: float = 60) -> float:
        """How long a killed process may be away: as promised, or on a slow machine twice the time of the first start,
        in which its engine may have to start again.
        """
        return max(promised_s, 2 * self.started_in_s)

    def run(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*TENORA, *arguments], env=self.environment, capture_output=True, text=True, timeout=900, check=False
        )

    @property
    def settings(self) -> StackSettings:
        return StackSettings(
            home=Path(self.environment["TENORA_HOME"]),
            gateway_port=int(self.environment["TENORA_GATEWAY_PORT"]),
            control_port=int(self.environment["TENORA_CONTROL_PORT"]),
        )

    def status(self, *, secrets: bool = False) -> dict:
        """What `tenora status --json` prints, without the two seconds that a new process takes."""
        return json.loads(json.dumps(read_status(self.settings, secrets=secrets)))

    def admin(self) -> httpx.Client:
        now = self.status(secrets=True)
        return httpx.Client(
            base_url=now["control_url"], headers={"Authorization": f"Bearer {now['admin_key']}"}, timeout=30
        )

    def new_tenant(self, name: str, **limits: int) -> tuple[str, str]:
        """(tenant id, key) on a new plan."""
        plan = f"{name}-{time.time_ns()}"
        with self.admin() as admin:
            body = {"name": plan, "limits": LIMITS | limits, "prices": PRICES}
            admin.post("/api/v1/admin/plans", json=body).raise_for_status()
            tenant = admin.post("/api/v1/admin/tenants", json={"name": plan, "plan": plan}).raise_for_status().json()
            path = f"/api/v1/admin/tenants/{tenant['id']}/api-keys"
            key = admin.post(path, json={"name": "e2e"}).raise_for_status().json()["key"]
        wait_until(lambda: self.accepts(key), timeout_s=30, what="the gateway to know a new key")
        return tenant["id"], key

    def reconcile_when_settled(self) -> dict:
        """The reconciliation, once every request that has begun is in the ledger and in a report of its engine. An
        engine that was killed has lost the reports of its last seconds.
        """
        metrics = f"http://127.0.0.1:{load_ports(run_folder(self.settings))['gateway_metrics']}/metrics"

        def is_idle() -> bool:
            # A request is counted as running until its usage is in billing's stream, or in the backlog.
            names = "tenora_gateway_running_requests", "tenora_gateway_settlement_backlog"
            return not any(sample(metrics, name, "") for name in names)

        wait_until(is_idle, timeout_s=60, what="the gateway to settle every request")
        with self.admin() as admin:

            def reconciliation() -> dict:
                return admin.get("/api/v1/admin/reconciliation").raise_for_status().json()

            wait_until(lambda: not reconciliation()["unprocessed_events"], timeout_s=60, what="billing to catch up")
            reports_until = time.monotonic() + 10
            while (found := reconciliation())["unexplained_drift_tokens"] and time.monotonic() < reports_until:
                time.sleep(0.2)
            return found

    def accepts(self, key: str) -> bool:
        """Whether the gateway knows the key."""
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.get(f"{self.status()['gateway_url']}/v1/models", headers=headers).status_code == 200


def processes_of(home: Path) -> dict[int, str]:
    """Command lines of every living process that carries this home in its environment, or is in the process group of
    one that does: vLLM's children write their titles over their environment."""
    marker = f"TENORA_HOME={home}".encode()
    commands, groups, marked = {}, {}, set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            pid = int(process.name)
            groups[pid] = os.getpgid(pid)
            commands[pid] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if marker in (process / "environ").read_bytes().split(b"\0"):
                marked.add(groups[pid])
        except OSError:
            continue
    return {pid: command for pid, command in commands.items() if groups[pid] in marked and command}


def lives(pid: int) -> bool:
    """Whether the process runs: one that has ended but was not yet reaped does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The base model's checkpoint, shared with `make demo`: made once on a machine."""
    return materialize(REPOSITORY / ".tenora", print)


@pytest.fixture(scope="package")
def replica_alone() -> Iterator[ExitStack]:
    """What stops the replica: the last of these tests, since others share its Redis, or the beginning of one with an
    engine of its own.
    """
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="package")
def no_replica(replica_alone) -> None:
    """The replica's engine runs no longer: two engines share a core, and an idle one beside a busy one looks hung."""
    replica_alone.close()


@pytest.fixture(scope="package")
def replica(replica_alone, checkpoint, s3_settings, redis_server, tmp_path_factory) -> RealReplica:
    work = tmp_path_factory.mktemp("replica")
    return replica_alone.enter_context(
        real_replica(checkpoint, s3_settings, redis_server, work, slots=SLOTS, memory=MEMORY)
    )


@pytest.fixture(scope="package")
def room(replica) -> RealRoom:
    return replica.room


@pytest.fixture(scope="package")
def engine(replica) -> RealEngine:
    return replica.engine


@pytest.fixture(scope="package")
def models(engine) -> list[str]:
    """The base model, and adapters of three ranks whose answers differ from one another's and from its own."""
    return [BASE, *(engine.new_adapter(seed, rank=(4, 8, 16)[seed % 3], scale=0.1) for seed in range(ADAPTERS))]


@pytest.fixture(scope="package")
def references(engine, models) -> References:
    """What each model answers when no other request runs."""
    return asyncio.run(ask_references(engine, models))


@contextmanager
def running_platform(checkpoint: Path, home: Path, **environment: str) -> Iterator[Platform]:
    """`tenora up` in ``home`` until the block ends; `tenora down` must leave no process."""
    (home / "models").symlink_to(checkpoint.parent)
    platform = Platform(
        {
            **os.environ,
            "TENORA_HOME": str(home),
            "NUMBA_CACHE_DIR": str(compiled(checkpoint)),
            # On a busy machine, 20 requests at once wait longer than the default, and a stream outlasts a drain.
            "TENORA_QUEUE_WAIT_S": "300",
            "TENORA_REVOCATION_DRAIN_TIMEOUT_S": "300",
            "TENORA_GATEWAY_PORT": str(free_port()),
            "TENORA_CONTROL_PORT": str(free_port()),
            **environment,
        }
    )
    began = time.monotonic()
    try:
        up = platform.run("up", "--detach")
        assert up.returncode == 0, up.stderr + "".join(
            f"\n--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in (home / "logs").glob("*.log")
        )
        yield replace(platform, started_in_s=time.monotonic() - began)
    finally:
        before = processes_of(home)
        down = platform.run("down")
        deadline = time.monotonic() + 3  # the last of them may still be on its way out of main()
        while (left := {pid: command for pid, command in before.items() if lives(pid)} | processes_of(home)) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.1)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert down.returncode == 0, down.stderr
    assert left == {}, "`tenora down` left processes behind"


@pytest.fixture(scope="package")
def platform(no_replica, checkpoint, tmp_path_factory) -> Iterator[Platform]:
    with running_platform(checkpoint, tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def model() -> str:
    return MODEL_ID


def wait_until_ready(platform: Platform, timeout_s: float = 60) -> float:
    """Seconds until `tenora status` says ready."""
    began = time.monotonic()
    wait_until(lambda: platform.status().get("ready"), timeout_s=platform.return_s(timeout_s), what="the platform")
    return time.monotonic() - began
