"""A whole data plane as processes that can be killed: Valkey, billing over Postgres, gateways, witness replicas.

It starts, kills and restarts processes. load.py sends the load, and verdict.py checks the results.
"""

import contextlib
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import redis
import sqlalchemy as sa

from billing.prices import price_book
from billing.prices.card import PriceCard
from billing.subscriptions.assignments import assign_plan
from control_plane import database_roles
from core import db, redis_acl, redis_keys
from core.contracts.grants import KeyGrant, KeyLimits, Prices
from core.db import unit_of_work
from core.settings import PostgresSettings
from tenora.stack import embedded_servers
from tenora.stack.program import Program, free_port
from tests.chaos.witness_journals import Witnessed
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.faults.tcp_proxy import FaultsProxy, faults_proxy
from tests.fixtures.gateway.published import AMPLE, Publisher
from tests.fixtures.least_privilege import REDIS_USERS, user_url
from tests.fixtures.snapshot_keys import PUBLIC_KEYS

PRICES = Prices(input_nanos=150, cached_input_nanos=75, output_nanos=600, kv_page_second_nanos=1_000)
TOKEN_PRICES = msgspec.structs.replace(
    PRICES, kv_page_second_nanos=0
)  # so that a reservation is close to the amount spent
PLANS = {"pl_chaos": PRICES, "pl_tokens": TOKEN_PRICES}
# Shorter times than in production. Times that are promised in seconds (checkpoints) keep their defaults.
BRISK = {
    "replica_poll_ms": 50, "replica_stale_s": 1.5, "snapshot_block_ms": 200, "lease_s": 6, "lease_renewal_s": 0.5,
    "first_byte_s": 3, "inter_token_s": 2, "abort_s": 2, "settlement_retry_s": 0.1, "sweep_s": 0.2,
    "journal_recovery_s": 0.5, "engine_stalled_s": 2, "breaker_open_s": 1,
    "reserve_deadline_ms": 2000, "access_check_s": 0.5, "client_tcp_timeout_s": 2, "body_s": 4,
    "platform_concurrent_requests": 100_000,  # so that Redis counts this level
}  # fmt: skip
KEY_LIMITS = KeyLimits(concurrent_requests=10_000, tokens_per_month=1_000_000_000_000)  # counts the key's level
BILLING = {
    "RECLAIM_IDLE_MS": "300", "BLOCK_MS": "100", "BACKOFF_MS_MAX": "300", "QUOTA_REPAIR_S": "3",
    "QUOTA_DRIFT_S": "3600",  # Redis's counters must be correct here without a repair
}  # fmt: skip


@dataclass
class Platform:
    """The processes by name.

    ``tenants`` maps keys to tenant ids. Each tenant has prices, so that all its use has an amount, and a key with
    limits. ``key_ids`` maps tenants to key ids, and ``plans`` maps tenants to names in PLANS.
    """

    folder: Path
    client: redis.Redis
    publisher: Publisher | None  # none where a control plane publishes
    engine: sa.Engine
    redis_url: str
    up: contextlib.ExitStack
    running: dict[str, subprocess.Popen] = field(default_factory=dict)
    programs: dict[str, Program] = field(default_factory=dict)
    witnesses: dict[str, processes.WitnessProcess] = field(default_factory=dict)
    proxies: dict[str, FaultsProxy] = field(default_factory=dict)
    gateways: dict[str, str] = field(default_factory=dict)  # URLs
    tenants: dict[str, str] = field(default_factory=dict)
    key_ids: dict[str, str] = field(default_factory=dict)
    plans: dict[str, str] = field(default_factory=dict)
    witnessed: Witnessed = field(default_factory=Witnessed)

    def start(self, program: Program) -> None:
        """Start a program and wait until it is ready. A program that exits is started again, as a supervisor would do:
        the remains of a killed process may block its start for a moment.
        """
        self.programs[program.name], self.running[program.name] = program, program.start()

        def ready() -> bool:
            if self.running[program.name].poll() is not None:
                time.sleep(0.2)
                self.running[program.name] = program.start()
            return program.ready() and self.running[program.name].poll() is None

        try:
            wait_until(ready, timeout_s=60, what=program.name)
        except BaseException:
            sys.stderr.write(program.log.read_text()[-3000:])
            raise

    def kill(self, *names: str) -> None:
        """Send SIGKILL to all at the same time and wait."""
        for name in names:
            self.running[name].send_signal(signal.SIGKILL)
        for name in names:
            self.running[name].wait()

    def restart(self, *names: str) -> None:
        """Start the same programs again in this order, with the same addresses and disks."""
        for name in names:
            self.start(self.programs[name])

    @contextlib.contextmanager
    def gateway_for_now(self, name: str, **settings: object) -> Iterator[str]:
        """A gateway that is stopped and removed at the end of the block."""
        try:
            yield self.gateway(name, **settings)
        finally:
            self.retire(name)

    def retire(self, name: str) -> None:
        """Stop a process for good, if it has not ended already."""
        process = self.running.pop(name)
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        del self.programs[name]
        self.gateways.pop(name, None)

    def signal(self, name: str, number: signal.Signals) -> None:
        self.running[name].send_signal(number)

    def stop(self) -> None:
        """Stop all running processes in reverse order."""
        for name, process in reversed(self.running.items()):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(self.programs[name].stop_signal)
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def log(self, name: str) -> str:
        return self.programs[name].log.read_text()

    def tenant(self, plan: str = "pl_chaos", *, ceiling_nanos: int | None = None) -> str:
        """A new tenant's key, which every gateway knows."""
        tenant_id = self.publisher.tenant(AMPLE, prices=PLANS[plan], spend_ceiling_nanos=ceiling_nanos)
        with unit_of_work(self.engine) as session:
            assign_plan(session, tenant_id=tenant_id, plan_id=plan)
        self.plans[tenant_id] = plan
        key = self.publisher.key(tenant_id, limits=KEY_LIMITS)
        grant = self.client.hget(redis_keys.snapshot("keys"), self.publisher.hashed(key))
        self.tenants[key], self.key_ids[tenant_id] = tenant_id, msgspec.json.decode(grant, type=KeyGrant).key_id
        living = [url for name, url in self.gateways.items() if self.running[name].poll() is None]
        wait_until(lambda: all(_knows(url, key) for url in living), what="gateways to know a new key")
        return key

    def witness(self, name: str, *, proxied: bool = False, **options: object) -> processes.WitnessProcess:
        """Start a replica, behind a proxy if ``proxied``. Its journal survives a kill."""
        port = free_port()
        if proxied:
            self.proxies[name] = self.up.enter_context(faults_proxy(port))
            options["public_port"] = self.proxies[name].port
        options = {"token_interval_s": 0.02, **options}
        self.start(processes.witness_program(self.folder, self.redis_url, name, port=port, **options))
        url, journal = f"http://127.0.0.1:{port}", self.folder / f"{name}.jsonl"
        self.witnesses[name] = processes.WitnessProcess(name, url, self.running[name], journal)
        return self.witnesses[name]

    def far_gateway(self, name: str, **settings: object) -> str:
        """A gateway that reaches Redis through a proxy of the same name."""
        port = int(self.redis_url.rsplit(":", 1)[1].split("/")[0])
        proxy = self.proxies[name] = self.up.enter_context(faults_proxy(port))
        return self.gateway(name, redis_url=self.redis_url.replace(f":{port}", f":{proxy.port}"), **settings)

    def gateway(
        self,
        name: str,
        *,
        redis_url: str | None = None,
        argv: tuple[str, ...] = (sys.executable, "-m", "data_plane", "gateway"),
        **settings: object,
    ) -> str:
        """Start a gateway and return its URL when it is ready."""
        port = free_port()
        given = {
            "redis_url": user_url(redis_url or self.redis_url, redis_acl.GATEWAY), "key_pepper": processes.PEPPER,
            "snapshot_public_keys": PUBLIC_KEYS,
            "engine_key": processes.ENGINE_KEY, "salt_secret": processes.SALT_SECRET, "gateway_port": port,
            "journal_dir": self.folder / "gateway-journal", **BRISK, **settings,
        }  # fmt: skip
        url = self.gateways[name] = f"http://127.0.0.1:{port}"
        self.start(Program(
            name=name,
            argv=argv,
            ready=lambda: processes.answers(f"{url}/readyz"),
            log=self.folder / f"{name}.log",
            env={f"TENORA_{key.upper()}": str(value) for key, value in given.items()},
        ))  # fmt: skip
        return url

    def billing(self, name: str = "billing", **settings: str) -> None:
        """Start a billing worker. It is ready as soon as it runs."""
        env = {f"TENORA_BILLING_{key}": value for key, value in {**BILLING, **settings}.items()}
        postgres_dsn = self.engine.url.render_as_string(hide_password=False)
        env["TENORA_BILLING_CONSUMER"] = name
        env["TENORA_REDIS_URL"] = user_url(self.redis_url, redis_acl.BILLING)
        env["TENORA_POSTGRES_DSN"] = user_url(postgres_dsn, database_roles.BILLING)
        argv = (sys.executable, "-m", "billing", "worker")
        self.start(Program(name=name, argv=argv, ready=lambda: True, log=self.folder / f"{name}.log", env=env))


def _knows(url: str, key: str) -> bool:
    asked = urllib.request.Request(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"})
    try:
        urllib.request.urlopen(asked, timeout=2).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def platform(folder: Path, postgres: PostgresSettings) -> Iterator[Platform]:
    """A platform with its own Valkey, a migrated database and a billing worker."""
    server = embedded_servers.valkey(folder / "valkey", folder, port=free_port(), password="chaos", users=REDIS_USERS)
    engine = db.connect(postgres)
    with contextlib.ExitStack() as up:
        up.callback(engine.dispose)
        valkey = up.enter_context(processes.running(server.program))
        client = up.enter_context(redis.Redis.from_url(server.url))
        publisher = Publisher(client, processes.PEPPER)
        publisher.base_model()
        made = Platform(folder, client, publisher, engine, server.url, up)
        made.programs["valkey"], made.running["valkey"] = server.program, valkey
        up.callback(made.stop)
        with unit_of_work(engine) as session:
            for plan, prices in PLANS.items():
                price_book.add_version(session, plan_id=plan, card=PriceCard(**msgspec.structs.asdict(prices)))
        made.billing()
        yield made
