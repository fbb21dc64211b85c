"""Streams a second over three replicas that Ray has placed, beside three of the same that run without it.

No request passes through Ray, so this shows that: all six replicas and the cluster run all the time, and the turns of a
round differ only in which three get the requests. The replicas are witnesses. Exits with status 1 when the goal is
missed.

Run: ``sh requirements/ray.sh && python -m benchmarks.ray_placed``.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import click
import msgspec

from core import redis_acl, redis_keys
from core.contracts.fleet import WantedPool, WantedRevision
from tenora.stack.program import Program, free_port
from tests.conftest import running, wait_until
from tests.fixtures import processes
from tests.fixtures.gateway.published import Publisher, tiny_route
from tests.fixtures.least_privilege import user_url
from tests.fixtures.ray.callers import Callers, calling
from tests.fixtures.ray.cluster import WITNESS_REPLICA, ray_cluster, ready
from tests.fixtures.snapshot_keys import PUBLIC_KEYS

GOAL: Final = 0.98
REPLICAS, CALLERS, TOKENS = 3, 24, 31
WARM_UP_S: Final = 5.0
PLACED, LOCAL = "tiny-chat", "tiny-local"
OPTIONS: Final = ("--token-interval-s", "0.001")


def streams_per_s(url: str, key: str, model: str, seconds: float) -> float:
    """Whole streams a second of callers that each follow one after the other. Raises RuntimeError for a broken one."""
    with calling(Callers(url, key, model, TOKENS), CALLERS) as callers:
        began = time.monotonic()
        time.sleep(seconds)
        rate = float(callers.whole / (time.monotonic() - began))
    if callers.broken:
        raise RuntimeError(callers.broken[0])
    return rate


def local_replica(folder: Path, environment: dict[str, str], name: str) -> Program:
    """A replica as a node of Ray starts it, without Ray."""
    return Program(
        name=name,
        argv=(sys.executable, "-m", WITNESS_REPLICA, *OPTIONS, "--base-model", LOCAL),
        ready=lambda: True,
        log=folder / f"{name}.log",
        env={
            **environment,
            "PYTHONPATH": str(processes.ROOT),
            "WITNESS_FOLDER": str(folder),
            "TENORA_BASE_MODEL": LOCAL,
            "TENORA_MODEL_PATH": str(folder),
            "TENORA_ENGINE_PORT": str(free_port()),
            "TENORA_METRICS_PORT": str(free_port()),
            "TENORA_ENGINE_RUN_DIR": str(folder / "run"),
            "TENORA_CACHE_DIR": str(folder / "cache"),
            "TENORA_HEARTBEAT_S": "0.25",
            "TENORA_DRAIN_S": "5",
        },
    )


@contextmanager
def both(folder: Path) -> Iterator[tuple[str, str]]:
    """A gateway's address and a key, with as many replicas of each base model."""
    with ExitStack() as up:
        valkey = up.enter_context(processes.valkey(folder))
        publisher = Publisher(valkey.client, processes.PEPPER)
        for model in (PLACED, LOCAL):
            publisher.base_model(msgspec.structs.replace(tiny_route(), id=model))
        key = publisher.key(publisher.tenant())
        environment = {
            "TENORA_ENGINE_KEY": processes.ENGINE_KEY, "TENORA_SNAPSHOT_PUBLIC_KEYS": PUBLIC_KEYS,
            "TENORA_REDIS_URL": user_url(valkey.url, redis_acl.REPLICA),
        }  # fmt: skip
        gateway = up.enter_context(processes.gateway(folder, valkey.url))
        cluster = up.enter_context(ray_cluster(folder, environment, redis_url=valkey.url, nodes=REPLICAS))
        up.enter_context(cluster.placer(folder, user_url(valkey.url, redis_acl.PLACER), *OPTIONS))
        given = {"TENORA_BASE_MODEL": PLACED, "TENORA_MODEL_PATH": str(folder)}
        revision = WantedRevision(number=1, replicas=REPLICAS, environment=given)
        wanted = WantedPool(pool="chat", revisions=(revision,))
        valkey.client.hset(redis_keys.FLEET_WANTED, "chat", msgspec.json.encode(wanted))
        for number in range(REPLICAS):
            up.enter_context(running(local_replica(folder, environment, f"local-{number}")))

        wait_until(lambda: len(ready(valkey.client)) == 2 * REPLICAS, timeout_s=90, what="all replicas")
        yield gateway.url, key


@click.command()
@click.option("--rounds", default=12, show_default=True, type=click.IntRange(1), help="Each measures both.")
@click.option("--seconds", default=3.0, show_default=True, help="Of each measurement.")
def main(rounds: int, seconds: float) -> None:
    """Measure both placements in turn, and print the ratio of each round."""
    with both(Path(tempfile.mkdtemp(prefix="tenora-ray-"))) as (url, key):
        for model in (PLACED, LOCAL):
            streams_per_s(url, key, model, WARM_UP_S)
        ratios = []
        for turn in range(rounds):
            order = (PLACED, LOCAL) if turn % 2 == 0 else (LOCAL, PLACED)
            found = {model: streams_per_s(url, key, model, seconds) for model in order}
            ratios.append(found[PLACED] / found[LOCAL])
            click.echo(f"by Ray {found[PLACED]:7.1f}  without {found[LOCAL]:7.1f} streams/s  ratio {ratios[-1]:.3f}")
    ratio = statistics.median(ratios)
    click.echo(f"{'met' if ratio >= GOAL else 'MISSED'}: {ratio:.3f} of the streams/s without Ray (at least {GOAL})")
    if ratio < GOAL:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
