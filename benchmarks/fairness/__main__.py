"""Measures how a tenant's flood affects another tenant, batch affects chats, and overload affects all tenants.

One or more real gateways run in front of a witness replica with a fixed number of KV pages and a fixed pace. The
witness's steps do not slow down as a batch grows, so the figures show admission alone.

Run: ``python -m benchmarks.fairness [--gateways 2 [--apart]]``. Prints each goal with its figure and writes JSON; exits
with status 1 when a goal is missed.
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
import redis

from benchmarks.goals import judged, report
from benchmarks.load import Answer, TenantLoad, TenantsLoad, quantile, tokens_per_s
from tests.fixtures import processes
from tests.fixtures.gateway.published import AMPLE, Publisher

FIRST_TOKEN_S: Final = 0.25
TOKENS: Final = 10.5  # mean tokens of the witness's answers: 5 to 16, depending on the prompt
INTERVAL_S: Final = 0.1
PAGES: Final = 256
REQUEST_PAGES: Final = 4
PROMPT: Final = "Tell me about"
MAX_TOKENS: Final = 48  # together with the prompt 49 to 64 tokens: four pages
SECONDS_OF_ONE: Final = FIRST_TOKEN_S + TOKENS * INTERVAL_S
CAPACITY_PER_S: Final = PAGES / REQUEST_PAGES / SECONDS_OF_ONE
GOALS: Final = {
    "quiet tenant's TTFT p99 beside a flood of 32 times its rate, to alone": ("<=", 1.25),
    "its requests that were refused there": ("<=", 0.0),
    "two equal backlogged tenants, tokens of the one to the other": ("<=", 1.10),
    "weights 3 to 1, tokens of the one to three times the other's": ("<=", 1.10),
    "tokens of one tenant alone, to those of eight": (">=", 0.95),
    "chats' TTFT p99 with endless batch behind them, to without": ("<=", 1.25),
    "tokens of chats and batch together, to batch alone": (">=", 0.90),
    "goodput at 10 times the capacity, to the peak": (">=", 0.90),
    "refusals at 10 times the capacity, p99 in ms": ("<=", 50.0),
}


@dataclass
class Deployment:
    """The gateways, the witness and the tenants of a run. ``apart`` sends all requests of a tenant to one gateway."""

    publisher: Publisher
    urls: list[str]
    apart: bool = False
    tenants: int = 0

    def tenant(self, name: str, **traffic: float) -> TenantLoad:
        """Create a tenant with ample limits; ``weight`` and ``tier`` belong to its plan."""
        limits = {field: int(traffic.pop(field)) for field in ("weight", "tier") if field in traffic}
        tenant_id = self.publisher.tenant(AMPLE, **limits)
        gateway = self.tenants if self.apart else None
        self.tenants += 1
        key = self.publisher.key(tenant_id)
        return TenantLoad(name=name, key=key, gateway=gateway, **traffic)  # type: ignore[arg-type]  # by field

    def run(self, *tenants: TenantLoad, seconds: float) -> list[Answer]:
        """Run one load from its start to its last answer."""
        load = TenantsLoad(self.urls, prompt=PROMPT, max_tokens=MAX_TOKENS)
        return asyncio.run(load.run(tenants, seconds=seconds))


@contextlib.contextmanager
def deployment(
    folder: Path, redis_url: str, *, pages: int = PAGES, gateways: int = 1, apart: bool = False, **settings: object
) -> Iterator[Deployment]:
    """Start gateways in front of one witness with ``pages`` KV pages, on an emptied Redis."""
    with redis.Redis.from_url(redis_url) as client, contextlib.ExitStack() as running:
        client.flushall()
        publisher = Publisher(client, processes.PEPPER)
        publisher.base_model()
        options = {"pages": pages, "token_interval_s": INTERVAL_S, "first_token_s": FIRST_TOKEN_S}
        running.enter_context(processes.witness(folder, redis_url, **options))
        urls = [
            running.enter_context(
                processes.gateway(folder, redis_url, f"gateway_{number}", queue_wait_s=3, **settings)
            ).url
            for number in range(gateways)
        ]
        yield Deployment(publisher, urls, apart)


def quiet_beside_a_flood(on: Deployment, *, seconds: float, quiet_per_s: float = 2.0) -> dict[str, Any]:
    """TTFT of a tenant with a low request rate, alone and while another tenant sends 32 times as many requests."""
    quiet = on.tenant("quiet", per_s=quiet_per_s)
    flood = on.tenant("flood", per_s=32 * quiet_per_s)
    alone = [answer.first_token_s for answer in on.run(quiet, seconds=seconds)]
    both = on.run(quiet, flood, seconds=seconds)
    beside = [answer for answer in both if answer.tenant == "quiet"]
    p99 = {"alone": quantile(alone, 0.99), "beside": quantile([a.first_token_s for a in beside], 0.99)}
    return {
        "p50_s": {"alone": quantile(alone, 0.5), "beside": quantile([a.first_token_s for a in beside], 0.5)},
        "p99_s": p99,
        "ratio": p99["beside"] / p99["alone"],
        "quiet_refused": sum(answer.status != 200 for answer in beside),
        "flood_refused": sum(answer.status != 200 for answer in both if answer.tenant == "flood"),
        "flood_served": sum(answer.status == 200 for answer in both if answer.tenant == "flood"),
    }


def backlogged(on: Deployment, *, seconds: float, at_once: int, weight: int = 1) -> dict[str, Any]:
    """Tokens of two tenants that both always have more requests than fit.

    With equal weights, one tenant has three times as many requests in flight as the other.
    """
    one = on.tenant("one", at_once=at_once, weight=weight)
    other = on.tenant("other", at_once=3 * at_once if weight == 1 else at_once)
    answers = on.run(one, other, seconds=seconds)
    after_s = 2 * SECONDS_OF_ONE  # both tenants have a steady backlog by then
    rates = [tokens_per_s(answers, after_s=after_s, until_s=seconds, tenant=name) for name in ("one", "other")]
    shares = [rates[0] / weight, rates[1]]
    return {"tokens_per_s": rates, "weight": weight, "ratio": max(shares) / min(shares)}


def idle_share(on: Deployment, *, seconds: float, at_once: int) -> dict[str, Any]:
    """Tokens of one tenant alone, compared with eight tenants that together have as many requests in flight."""
    after_s = 2 * SECONDS_OF_ONE
    alone = on.run(on.tenant("alone", at_once=at_once), seconds=seconds)
    eight = on.run(*(on.tenant(f"{n}", at_once=at_once // 8) for n in range(8)), seconds=seconds)
    rates = [tokens_per_s(answers, after_s=after_s, until_s=seconds) for answers in (alone, eight)]
    return {"tokens_per_s": {"alone": rates[0], "eight": rates[1]}, "ratio": rates[0] / rates[1]}


def chats_before_batch(on: Deployment, *, seconds: float, at_once: int, chats_per_s: float) -> dict[str, Any]:
    """TTFT of chats alone, and while another tenant always has more batch requests than fit; tokens of both then, and
    of the batch alone. The batch runs first: later it leaves free what the chats of the last minute needed. Chats of
    the first seconds do not count, when all requests of the batch connect at once.
    """
    chats = on.tenant("chats", per_s=chats_per_s)
    batch = replace(on.tenant("batch", at_once=at_once), service_class="batch")
    after_s = 2 * SECONDS_OF_ONE
    batch_rate = tokens_per_s(on.run(batch, seconds=seconds), after_s=after_s, until_s=seconds)
    first, both = on.run(chats, seconds=seconds), on.run(chats, batch, seconds=seconds)
    rate = tokens_per_s(both, after_s=after_s, until_s=seconds)
    alone, beside = (
        [each.first_token_s for each in answers if each.tenant == "chats" and each.sent_s >= after_s]
        for answers in (first, both)
    )
    p99 = {"alone": quantile(alone, 0.99), "beside": quantile(beside, 0.99)}
    return {
        "p50_s": {"alone": quantile(alone, 0.5), "beside": quantile(beside, 0.5)},
        "p99_s": p99,
        "ratio": p99["beside"] / p99["alone"],
        "chats_refused": sum(answer.status != 200 for answer in both if answer.tenant == "chats"),
        "tokens_per_s": {"batch": batch_rate, "both": rate},
        "tokens_ratio": rate / batch_rate,
    }


def overload(on: Deployment, *, seconds: float, capacity_per_s: float, factors: tuple[float, ...]) -> dict[str, Any]:
    """Goodput and refusals as the combined load of ten tenants grows by ``factors``."""
    tenants = [on.tenant(f"{n}") for n in range(10)]
    rows = {}
    for factor in factors:
        per_s = factor * capacity_per_s / len(tenants)
        answers = on.run(*(replace(tenant, per_s=per_s) for tenant in tenants), seconds=seconds)
        # In the first seconds all tenants connect at once and the pace is unknown: that is not steady overload.
        refused = [a.total_s for a in answers if a.status != 200 and a.sent_s >= 2 * SECONDS_OF_ONE]
        rows[factor] = {
            "goodput_tokens_per_s": tokens_per_s(answers, after_s=2 * SECONDS_OF_ONE, until_s=seconds),
            "served": sum(answer.status == 200 for answer in answers),
            "refused": len(refused),
            "refused_p50_ms": 1000 * quantile(refused, 0.5),
            "refused_p99_ms": 1000 * quantile(refused, 0.99),
        }
    peak, last = max(row["goodput_tokens_per_s"] for row in rows.values()), rows[max(factors)]
    return {
        "by_factor": rows,
        "ratio": last["goodput_tokens_per_s"] / peak,
        "refused_p99_ms": last["refused_p99_ms"],
    }


def measure(folder: Path, redis_url: str, seconds: float, **options: Any) -> dict[str, Any]:
    """Run every scenario. The overload runs on a quarter of the pages, since this process sends ten times its load."""
    many = 2 * PAGES // REQUEST_PAGES
    with deployment(folder, redis_url, **options) as on:
        result = {
            "quiet": quiet_beside_a_flood(on, seconds=seconds),
            "equal": backlogged(on, seconds=seconds, at_once=many // 2),
            "weighted": backlogged(on, seconds=seconds, at_once=many, weight=3),
            "idle": idle_share(on, seconds=seconds, at_once=many),
        }
    with deployment(folder, redis_url, **options) as on:  # whose gateways have seen no other arrivals
        result["batch"] = chats_before_batch(on, seconds=seconds, at_once=many, chats_per_s=CAPACITY_PER_S / 5)
    with deployment(folder, redis_url, pages=PAGES // 4, **options) as on:
        result["overload"] = overload(on, seconds=seconds, capacity_per_s=CAPACITY_PER_S / 4, factors=(0.5, 1, 3, 10))
    return result


@click.command()
@click.option("--seconds", default=20.0, help="Seconds of each load.")
@click.option("--gateways", default=1, help="Gateway processes; each connection goes to a random one.")
@click.option("--apart", is_flag=True, help="All connections of a tenant go to the same gateway.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Also write all results to this file.")
def main(seconds: float, gateways: int, apart: bool, out: Path | None) -> None:
    """Measure fairness and overload, print the goals, write everything."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        with processes.valkey(folder) as server:
            result = measure(folder, server.url, seconds, gateways=gateways, apart=apart)
    seen = (
        result["quiet"]["ratio"], result["quiet"]["quiet_refused"], result["equal"]["ratio"],
        result["weighted"]["ratio"], result["idle"]["ratio"], result["batch"]["ratio"], result["batch"]["tokens_ratio"],
        result["overload"]["ratio"], result["overload"]["refused_p99_ms"],
    )  # fmt: skip
    result["goals"] = judged(GOALS, seen)
    if out:
        out.write_text(json.dumps(result, indent=1))
    report(result["goals"])


if __name__ == "__main__":
    main()
