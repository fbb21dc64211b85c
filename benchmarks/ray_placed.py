"""Streams a second over three replicas that Ray has placed, beside three of the same that run without it.

No request passes through Ray, so this shows that: the cluster runs in both halves of a round, and only the placement of
the replicas differs. The replicas are witnesses. Exits with status 1 when the goal is missed.

Run: ``sh requirements/ray.sh && python -m benchmarks.ray_placed``.
"""

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click
import httpx
import msgspec
import openai

from core import redis_acl, redis_keys
from core.contracts.fleet import WantedPool, WantedRevision
from core.contracts.replicas import read_status
from tenora.stack.program import Program, free_port
from tests.conftest import TLS, running, wait_until
from tests.fixtures import processes
from tests.fixtures.gateway.published import Publisher
from tests.fixtures.least_privilege import user_url
from tests.fixtures.ray.cluster import WITNESS_REPLICA, ray_cluster
from tests.fixtures.snapshot_keys import PUBLIC_KEYS

GOAL: Final = 0.98
REPLICAS, CALLERS, TOKENS = 3, 24, 31
_SEEN_S: Final = 1.0  # by then the gateway has read the heartbeats of all replicas
OPTIONS: Final = ("--token-interval-s", "0.001")


def streams_per_s(url: str, key: str, seconds: float) -> float:
    """Whole streams a second of callers that each follow one after the other."""
    ended, counts = threading.Event(), [0] * CALLERS

    def follow(number: int) -> None:
        client = openai.DefaultHttpxClient(verify=TLS)
        with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=client) as sdk:
            while not ended.is_set():
                list(sdk.completions.create(model="tiny-chat", prompt="The sea", max_tokens=TOKENS, stream=True))
                counts[number] += 1

    def is_served() -> bool:
        body = {"model": "tiny-chat", "prompt": "The sea", "max_tokens": 1}
        headers = {"authorization": f"Bearer {key}"}
        return httpx.post(f"{url}/v1/completions", json=body, headers=headers, verify=TLS).status_code == 200

    wait_until(is_served, what="an answer")
    time.sleep(_SEEN_S)
    with ThreadPoolExecutor(CALLERS) as callers:
        following = [callers.submit(follow, number) for number in range(CALLERS)]
        began = time.monotonic()
        time.sleep(seconds)
        found = sum(counts) / (time.monotonic() - began)
        ended.set()
        for each in following:
            each.result(60)
    return found


def local_replica(folder: Path, environment: dict[str, str], name: str, model_path: Path) -> Program:
    """A replica as a node of Ray starts it, without Ray."""
    return Program(
        name=name,
        argv=(sys.executable, "-m", WITNESS_REPLICA, *OPTIONS),
        ready=lambda: True,
        log=folder / f"{name}.log",
        env={
            **environment,
            "PYTHONPATH": str(processes.ROOT),
            "WITNESS_FOLDER": str(folder),
            "TENORA_BASE_MODEL": "tiny-chat",
            "TENORA_MODEL_PATH": str(model_path),
            "TENORA_ENGINE_PORT": str(free_port()),
            "TENORA_METRICS_PORT": str(free_port()),
            "TENORA_ENGINE_RUN_DIR": str(folder / "run"),
            "TENORA_CACHE_DIR": str(folder / "cache"),
            "TENORA_HEARTBEAT_S": "0.25",
            "TENORA_DRAIN_S": "5",
        },
    )


@click.command()
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Each measures both.")
@click.option("--seconds", default=8.0, show_default=True, help="Of each measurement.")
def main(rounds: int, seconds: float) -> None:
    """Measure both placements in turn, and print the ratio of each round."""
    folder = Path(tempfile.mkdtemp(prefix="tenora-ray-"))
    with ExitStack() as up:
        valkey = up.enter_context(processes.valkey(folder))
        publisher = Publisher(valkey.client, processes.PEPPER)
        publisher.base_model()
        key = publisher.key(publisher.tenant())
        environment = {
            "TENORA_ENGINE_KEY": processes.ENGINE_KEY, "TENORA_SNAPSHOT_PUBLIC_KEYS": PUBLIC_KEYS,
            "TENORA_REDIS_URL": user_url(valkey.url, redis_acl.REPLICA),
        }  # fmt: skip
        gateway = up.enter_context(processes.gateway(folder, valkey.url))
        cluster = up.enter_context(ray_cluster(folder, environment, redis_url=valkey.url, nodes=REPLICAS))
        up.enter_context(cluster.placer(folder, user_url(valkey.url, redis_acl.PLACER), *OPTIONS))

        def want(replicas: int) -> None:
            given = {"TENORA_BASE_MODEL": "tiny-chat", "TENORA_MODEL_PATH": str(folder)}
            revision = WantedRevision(number=1, replicas=replicas, environment=given)
            pool = WantedPool(pool="chat", revisions=(revision,))
            valkey.client.hset(redis_keys.FLEET_WANTED, "chat", msgspec.json.encode(pool))
            wait(replicas)

        def wait(replicas: int) -> None:
            def ready() -> int:
                names = [name.decode() for name in valkey.client.zrange(redis_keys.REPLICAS, 0, -1)]
                values = filter(None, (valkey.client.get(redis_keys.replica(name)) for name in names))
                return sum((status := read_status(value)) is not None and status.state == "ready" for value in values)

            wait_until(lambda: ready() == replicas, timeout_s=90, what=f"{replicas} ready replicas")

        def placed() -> float:
            want(REPLICAS)
            found = streams_per_s(gateway.url, key, seconds)
            want(0)
            return found

        def without() -> float:
            with ExitStack() as local:
                for number in range(REPLICAS):
                    local.enter_context(running(local_replica(folder, environment, f"local-{number}", folder)))
                wait(REPLICAS)
                found = streams_per_s(gateway.url, key, seconds)
            wait(0)
            return found

        ratios = []
        for turn in range(rounds):
            halves: list[Callable[[], float]] = [placed, without] if turn % 2 == 0 else [without, placed]
            found = {half: half() for half in halves}
            ratios.append(found[placed] / found[without])
            click.echo(f"by Ray {found[placed]:7.1f}  without {found[without]:7.1f} streams/s  ratio {ratios[-1]:.3f}")
    ratio = statistics.median(ratios)
    click.echo(f"{'met' if ratio >= GOAL else 'MISSED'}: {ratio:.3f} of the streams/s without Ray (at least {GOAL})")
    if ratio < GOAL:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
