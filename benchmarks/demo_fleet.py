"""A pool on a local Ray cluster, from one replica to three and back, in five minutes: ``make demo-fleet``.

Two real vLLM replicas answer two adapters, and their tokens are compared with the ledger and the invoices. The pool
that grows has witness replicas, which count like engines and invent their words: three more real engines would measure
the scheduler of two cores. Everything else is the product: gateway, control plane, fleet process, placer, agents,
billing.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import click
import msgspec
import openai
import redis

from adapters.base_model_spec import describe
from benchmarks.scene import Scene, check
from billing.reconciliation import runs
from core import db
from core.settings import PostgresSettings
from tenora.demo.control import ControlPlane
from tenora.settings import StackSettings
from tenora.stack.base_model import HUB_NAME, MODEL_ID, materialize
from tenora.stack.daemon import run_folder
from tenora.stack.definition import Stack
from tenora.stack.secrets_file import load_ports, load_secrets
from tests.conftest import wait_until
from tests.e2e.conftest import Platform, running_platform
from tests.fixtures.gateway.tiny_tokenizer import CHATML, tokenizer_json
from tests.fixtures.ray.callers import Callers, calling
from tests.fixtures.ray.cluster import RayCluster, ray_cluster
from tests.fixtures.uploads.peft_adapters import tiny_base, write_adapter

POOL, WITNESS_MODEL = "spike", "tiny-chat"
CALLERS, TOKENS, PAGES = 60, 100, 180
VOICES = ("one", "two")
GOAL_S = 300
OWN = frozenset({"TENORA_ENGINE_RUN_DIR", "TENORA_CACHE_DIR", "TENORA_HOME"})  # each node has folders of its own
SETTINGS = {
    "TENORA_REPLICAS": "2",
    "TENORA_PLACES_POOLS": "false",  # Ray's placer does
    "TENORA_FLEET_SHRINK_AFTER_S": "15",
}


class Demo:
    """One run over a running platform. ``admin`` is a client with the admin key."""

    def __init__(self, scene: Scene, platform: Platform, admin: ControlPlane, work: Path) -> None:
        self.scene, self.platform, self.admin, self.work = scene, platform, admin, work
        self.url = platform.status()["gateway_url"]

    def tenora(self, *arguments: str) -> str:
        ran = self.platform.run(*arguments)
        if ran.returncode:
            raise RuntimeError(f"tenora {' '.join(arguments)}: {ran.stderr}{ran.stdout}")
        return str(ran.stdout)

    def replicas(self) -> Counter[tuple[int, str]]:
        """The pool's replicas by revision and state."""
        found = self.admin.get(f"/api/v1/admin/pools/{POOL}")["replicas"]
        return Counter({(each["revision"], each["state"]): each["count"] for each in found})

    def replica_ids(self) -> set[str]:
        return {each["id"] for each in self.admin.get("/api/v1/admin/replicas")["data"]}

    def wait_for(self, count: int, revision: int, *, timeout_s: float = 120) -> None:
        """Until exactly so many replicas of the revision serve, and no others."""
        wait_until(
            lambda: self.replicas() == Counter({(revision, "ready"): count}),
            timeout_s=timeout_s, what=f"{count} ready replicas of revision {revision}",
        )  # fmt: skip

    def make_pool(self) -> None:
        """A base model of a few kilobytes for the witnesses, and a pool of it with one to three replicas."""
        weights = self.work / "witness-model"
        weights.mkdir()
        (weights / "model.safetensors").write_bytes(b"no weights: a witness invents its words")
        model = msgspec.structs.replace(
            tiny_base(id=WITNESS_MODEL),
            tokenizer_json=tokenizer_json().decode(), chat_template=CHATML, vocab_size=400, rank_max=16,
        )  # fmt: skip
        self.admin.post("/api/v1/admin/base-models", msgspec.to_builtins(model))
        digest = self.tenora("base-models", "push", str(weights)).strip()
        self.tenora("pools", "create", POOL, "--base-model", WITNESS_MODEL, "--replicas", "1-3")
        self.tenora("pools", "revise", POOL, "--weights", digest, "--engine", "unnamed")
        self.tenora("pools", "use", POOL, "1")
        self.wait_for(1, 1)

    def upload_voices(self, key: str, checkpoint: Path) -> None:
        """Two adapters with weights of their own, not trained, for the real replicas."""
        spec = describe(checkpoint, id=MODEL_ID, hub_name=HUB_NAME)
        with ControlPlane(self.platform.status()["control_url"], key) as control:
            for seed, name in enumerate(VOICES):
                folder = write_adapter(self.work / name, spec, rank=8, seed=seed, scale=0.1)
                control.upload_adapter(name, MODEL_ID, folder)

    def ask_voices(self, key: str) -> int:
        """Whole answers of the real replicas. Returns their output tokens."""
        with openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=2, timeout=120) as client:
            wait_until(lambda: {*VOICES} <= {each.id for each in client.models.list()}, what="the adapters")
            answers = [
                client.completions.create(model=VOICES[turn % 2], prompt="The sea", max_tokens=16) for turn in range(8)
            ]
        return sum(answer.usage.completion_tokens for answer in answers if answer.usage)

    def reconcile(self, lost: set[str], postgres_dsn: str) -> None:
        """Engines, ledger and invoices, to the token. What a killed engine had not reported yet is charged all the
        same: only its own count may be too low.
        """
        found = self.platform.reconcile_when_settled()
        self.scene.say(f"  engines counted {found['engine_tokens']:,} tokens, the ledger {found['ledger_tokens']:,}")
        engine = db.connect(PostgresSettings(postgres_dsn=postgres_dsn))
        limits = runs.RunLimits(settle=timedelta(0), differences_max=1000)
        stored = runs.run(engine, limits, full=True)
        with db.unit_of_work(engine) as session:
            differences = [each for each in runs.read_run(session, stored.id).differences if each.unit == "token"]
        engine.dispose()
        explained = -sum(each.explained for each in differences)
        unreported = -sum(each.unexplained for each in differences)
        check(
            all(each.replica_id in lost for each in differences) and unreported >= 0,
            f"they differ by the lost engine alone: {explained:,} tokens of requests that it broke, each by its id, "
            f"and {unreported:,} of its last two seconds",
        )
        closed = self.admin.post("/api/v1/admin/billing/close", {"until": "now"})["invoices"]
        whole = self.admin.get("/api/v1/admin/reconciliation")
        check(whole["ledger_tokens"] == whole["invoiced_tokens"] > 0, f"{len(closed)} invoices have every token")


def play(scene: Scene, demo: Demo, ray: RayCluster, checkpoint: Path, postgres_dsn: str) -> None:
    """The scenes in their order."""
    _, key = demo.platform.new_tenant("fleet")
    with scene.step("two real replicas answer two adapters"):
        demo.upload_voices(key, checkpoint)
        tokens = demo.ask_voices(key)
        scene.say(f"  {tokens} output tokens")
    with scene.step("a pool of one to three replicas on Ray, of which one starts"):
        demo.make_pool()
    with calling(Callers(demo.url, key, WITNESS_MODEL, TOKENS), CALLERS) as spike:
        with scene.step(f"a spike: {CALLERS} callers, {TOKENS} tokens each; the pool grows to three"):
            demo.wait_for(3, 1)
        check(spike.broken == [], "no stream broken")
        with scene.step("a node is killed, and a new one joins"):
            lost = ray.kill_node()
            wait_until(lambda: not lost & demo.replica_ids(), what="the loss of the replica to be seen")
            ray.add_node()
            demo.wait_for(3, 1)
        broken = len(spike.broken)
        check(0 < broken < CALLERS, f"{broken} streams broken, of one replica of three ({', '.join(lost)})")
        with scene.step("the pool moves to a revision with 4 slots, one replica after the other"):
            demo.tenora("pools", "revise", POOL, "--set", "engine_slots=4")
            demo.tenora("pools", "use", POOL, "2")
            demo.wait_for(3, 2)
        check(len(spike.broken) == broken, f"no further stream broken, {spike.whole} whole")
    with scene.step("the spike is over; the pool scales back to one"):
        demo.wait_for(1, 2)
    check(len(spike.broken) == broken, "no stream broken")
    scene.say("why, as `tenora fleet explain` tells it:")
    click.echo(demo.tenora("fleet", "explain", POOL))
    with scene.step("engines, ledger and invoices"):
        demo.ask_voices(key)
        demo.reconcile(lost, postgres_dsn)


@contextmanager
def running(scene: Scene, work: Path) -> Iterator[tuple[Demo, RayCluster, Path, str]]:
    """The platform and the Ray cluster, which start at the same time."""
    checkpoint = materialize(Path(".tenora").resolve(), scene.say)
    home = work / "home"
    home.mkdir()
    with ExitStack() as up, ThreadPoolExecutor(1) as beside:
        platforms = running_platform(checkpoint, home, **SETTINGS)
        starting = beside.submit(up.enter_context, platforms)
        settings = StackSettings(home=home)
        ports = run_folder(settings) / "ports.json"
        wait_until(lambda: ports.exists() or ended(starting), timeout_s=60, what="the start of the platform")
        stack = Stack(settings, load_secrets(home), load_ports(run_folder(settings)))
        wait_until(lambda: is_there(stack.addresses.redis_url) or ended(starting), timeout_s=60, what="Valkey")
        environment = {name: value for name, value in stack.replica_environment().items() if name not in OWN}
        ray = up.enter_context(ray_cluster(work, environment, redis_url=stack.addresses.redis_url, nodes=4))
        scene.say("Ray has a head and four nodes")
        platform = starting.result()
        scene.say("two real replicas serve")
        options = ("--token-interval-s", "0.1", "--pages", str(PAGES), "--faults", f'{{"output_tokens": {TOKENS}}}')
        up.enter_context(ray.placer(work, stack.addresses.redis_url, *options))
        now = platform.status(secrets=True)
        yield (
            Demo(scene, platform, up.enter_context(ControlPlane(now["control_url"], now["admin_key"])), work),
            ray,
            checkpoint,
            stack.addresses.postgres_dsn,
        )


def ended(starting: Future[Platform]) -> bool:
    """Whether the start has ended. Raises its error."""
    return starting.done() and starting.result() is not None


def is_there(redis_url: str) -> bool:
    """Whether Redis answers."""
    with redis.Redis.from_url(redis_url, socket_timeout=1) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


@click.command()
@click.option("--keep", is_flag=True, help="Keep the folder with all logs.")
def main(*, keep: bool) -> None:
    """Grow a pool on Ray under a spike, lose a node, change the revision, scale back, and reconcile."""
    scene, work = Scene(), Path(tempfile.mkdtemp(prefix="tenora-fleet-"))
    scene.say(f"logs: {work}")
    with running(scene, work) as (demo, ray, checkpoint, postgres_dsn):
        play(scene, demo, ray, checkpoint, postgres_dsn)
    scene.say(f"done; the goal is {GOAL_S} s")
    if not keep:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
