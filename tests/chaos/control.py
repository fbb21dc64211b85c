"""Kills of the control plane during changes: acknowledged changes take effect, and gateways continue to serve.

It uses a separate stack, in which the control plane itself publishes. The other stack checks the bills.
"""

import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import msgspec
from pydantic import SecretStr

from control_plane import database_roles, operations
from control_plane.api_keys import service as api_keys
from control_plane.settings import WebSettings
from core import db, redis_keys
from core.api_keys import mint_key
from core.settings import RedisSettings, S3Settings
from tenora.stack import embedded_servers
from tenora.stack.program import Program, answers, free_port
from tests.chaos.kills import Kill, Victim
from tests.chaos.load import Load
from tests.chaos.platform import Platform
from tests.conftest import create_database, wait_until
from tests.fixtures import processes
from tests.fixtures.control_plane.api import PEPPER, Api, Tenant, control_settings
from tests.fixtures.control_plane.two_gateways import AMPLE
from tests.fixtures.control_plane.worker import environment
from tests.fixtures.gateway.tiny_tokenizer import CHATML, tiny_route, tokenizer_json
from tests.fixtures.uploads.peft_adapters import tiny_base

STREAMS: Final = 50
TOKENS: Final = 100
EFFECT_S: Final = 15  # gateways know an acknowledged change within this time after a kill
VICTIMS: Final = {one.name: one for one in (
    Victim("web", ("web",)), Victim("worker", ("worker",)), Victim("web+worker", ("web", "worker")),
)}  # fmt: skip
_ASKED_EACH_S: Final = 0.25  # between model lists, whose rate per tenant is limited


@dataclass
class Plane:
    """The running stack, a tenant that streams, and another that changes its keys."""

    made: Platform
    api: Api
    tenant: Tenant
    changing: Tenant
    gateway: str


@dataclass
class ControlResult:
    """Sums over the kills of one victim."""

    victim: Victim
    runs: int = 0
    acknowledged: int = 0
    unanswered: int = 0
    streams: int = 0
    whole: int = 0
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{self.acknowledged} changes acknowledged, {self.unanswered} not, {self.whole} of "
            f"{self.streams} streams whole, problems {len(self.problems)}"
        )


@contextlib.contextmanager
def plane(folder: Path, postgres_url: str) -> Iterator[Plane]:
    """Start web, worker, S3, Valkey, a gateway and a witness over a separate database."""
    folder.mkdir()
    database = create_database(postgres_url, "chaos_control")
    operations.migrate(database)
    engine = db.connect(database)
    secret = mint_key("admin")
    with db.unit_of_work(engine) as session:
        api_keys.store_admin_key(session, secret, PEPPER.encode())
    with contextlib.ExitStack() as up:
        up.callback(engine.dispose)
        valkey = up.enter_context(processes.valkey(folder))
        valkey.client.set(redis_keys.QUOTAS_REBUILT, 1)  # there is no billing worker here
        s3 = embedded_servers.s3(
            folder / "s3", folder, port=free_port(), access_key="tests", secret_key="secret-of-tests", bucket="tenora"
        )
        up.enter_context(processes.running(s3.program))
        made = Platform(folder, valkey.client, None, engine, valkey.url, up)
        up.callback(made.stop)
        port = free_port()
        settings = control_settings(
            database,
            RedisSettings(redis_url=valkey.url),
            S3Settings(s3_endpoint=s3.url, s3_access_key="tests", s3_secret_key=SecretStr("secret-of-tests")),
            web=WebSettings(control_port=port),
        )
        url = f"http://127.0.0.1:{port}"
        for name, role, ready in (
            ("web", database_roles.WEB, lambda: answers(f"{url}/livez")),
            ("worker", database_roles.WORKER, lambda: True),
        ):
            env = environment(settings, role, TENORA_CONTROL_PORT=str(port))
            argv = (sys.executable, "-m", "control_plane", name)
            made.start(Program(name=name, argv=argv, ready=ready, log=folder / f"{name}.log", env=env))
        api = Api(url=url, settings=settings, admin_secret=secret)
        up.callback(lambda: [client.close() for client in api.clients])
        route = tiny_route()
        api.register(msgspec.structs.replace(
            tiny_base(id=route.id, hub_name=route.hub_name), tokenizer_json=tokenizer_json().decode(),
            chat_template=CHATML, bos_token=route.bos_token, eos_token=route.eos_token, vocab_size=route.vocab_size,
        )).raise_for_status()  # fmt: skip
        tenant, changing = api.tenant(**AMPLE), api.tenant(**AMPLE)
        made.witness("rep_control")
        wait_until(lambda: api.anyone.get("/readyz").status_code == 200, timeout_s=60, what="the control plane")
        # A batch's line that died with its gateway may run again after these times.
        gateway = made.gateway("gw_control", control_url=url, lease_s=2, idempotency_lease_s=3)
        yield Plane(made, api, tenant, changing, gateway)


class _Changes:
    """Creates and revokes keys through the API, one after the other, until ``stop``."""

    def __init__(self, plane: Plane) -> None:
        self.alive: dict[str, str] = {}
        self.dead: dict[str, str] = {}
        self.acknowledged = self.unanswered = 0
        self.unexpected: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(plane.changing,))
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self, tenant: Tenant) -> None:
        with httpx.Client(base_url=tenant.http.base_url, headers=tenant.http.headers, timeout=5) as http:
            for number in itertools.count():
                if self._over.wait(0.02):
                    return
                try:
                    self._change(http, revoke=number % 2 == 1 and bool(self.alive))
                except httpx.TransportError:
                    self.unanswered += 1

    def _change(self, http: httpx.Client, *, revoke: bool) -> None:
        if revoke:
            key_id = next(iter(self.alive))
            secret = self.alive.pop(key_id)  # unknown whether it is revoked if no answer comes
            answer = http.delete(f"/api/v1/api-keys/{key_id}")
            if answer.is_success:
                self.dead[key_id] = secret
        else:
            answer = http.post("/api/v1/api-keys", json={})
            if answer.is_success:
                made = answer.json()
                self.alive[made["id"]] = made["key"]
        self.acknowledged += answer.is_success
        if not answer.is_success and answer.status_code != 503:
            self.unexpected.append(f"{answer.status_code} {answer.text[:100]}")


def run(plane: Plane, kill: Kill, total: ControlResult) -> None:
    """Kill and restart; check that acknowledged changes take effect and that no stream is affected."""
    load = Load([plane.gateway], plane.tenant.key, STREAMS, max_tokens=TOKENS)
    changes = _Changes(plane)
    try:
        time.sleep(kill.instant_s)
        plane.made.kill(*kill.victim.processes)
        plane.made.restart(*kill.victim.processes)
        results = load.join()
    finally:
        changes.stop()
    total.runs += 1
    total.streams += len(results)
    total.whole += sum(one.end == "done" for one in results)
    total.acknowledged += changes.acknowledged
    total.unanswered += changes.unanswered
    prefix = f"seed {kill.seed} at {kill.instant_s:.2f} s: "
    total.problems += [f"{prefix}a stream ended {one.end} {one.code}" for one in results if one.end != "done"]
    total.problems += [prefix + one for one in (*changes.unexpected, *_without_effect(plane, changes))]


def _without_effect(plane: Plane, changes: _Changes) -> list[str]:
    """Acknowledged changes that the gateway does not know within EFFECT_S."""
    wanted = {secret: (key_id, 200) for key_id, secret in changes.alive.items()}
    wanted |= {secret: (key_id, 401) for key_id, secret in changes.dead.items()}
    deadline = time.monotonic() + EFFECT_S
    with httpx.Client(base_url=plane.gateway) as http:
        while wanted:
            for secret, (_, due) in list(wanted.items()):
                answer = http.get("/v1/models", headers={"authorization": f"Bearer {secret}"})
                if answer.status_code == due:
                    del wanted[secret]
            if time.monotonic() > deadline:
                break
            time.sleep(_ASKED_EACH_S)
    return [f"key {key_id} should be answered {due} by now" for key_id, due in wanted.values()]
