"""SIGKILL of one or two processes at a random instant under fifty streams, followed by the checks of verdict.py.

When Redis is killed, another tenant also sends calls until it reaches its spending ceiling. Seeds make runs repeatable.
"""

import random
import time
from dataclasses import dataclass
from typing import Final

from tests.chaos.fixture import records
from tests.chaos.load import CallResult, End, Load
from tests.chaos.platform import TOKEN_PRICES, Platform
from tests.chaos.verdict import Verdict, emitted, judge

STREAMS: Final = 50
TOKENS: Final = 100  # of each stream, one every 20 ms
WINDOW_S: Final = 2.5  # range of the instant: from before the first token until after most streams end
PAIRS_EACH: Final = 4  # kills of a single process per kill of a pair
BOUNDED_CALLS: Final = 60  # of the tenant with a ceiling, over the window and a while after it
BOUNDED_TOKENS: Final = 20
CEILING_NANOS: Final = 20 * BOUNDED_TOKENS * TOKEN_PRICES.output_nanos  # with their prompts, fewer than 20 calls fit


@dataclass(frozen=True)
class Victim:
    """``processes`` in the order of their restart; ``row`` of the fault matrix."""

    name: str
    processes: tuple[str, ...]
    row: str = ""

    def instants(self, kills: int) -> int:
        """Number of kills of this victim, given the number of kills of a single process."""
        return kills if len(self.processes) == 1 else max(1, kills // PAIRS_EACH)


VICTIMS: Final = {
    one.name: one
    for one in (
        Victim("gateway", ("gw_one",), "F18"),
        Victim("replica", ("rep_one",), "F2"),
        Victim("valkey", ("valkey",), "F11"),
        Victim("billing", ("billing",), "F16"),
        Victim("postgres", ("postgres",), "F14"),
        Victim("gateway+valkey", ("valkey", "gw_one")),
        Victim("gateway+billing", ("gw_one", "billing")),
        Victim("gateway+postgres", ("postgres", "gw_one")),
        Victim("replica+valkey", ("valkey", "rep_one")),
    )
}


@dataclass(frozen=True)
class Kill:
    """One victim and one instant."""

    victim: Victim
    seed: int

    @property
    def instant_s(self) -> float:
        return random.Random(f"{self.victim.name}/{self.seed}").uniform(0, WINDOW_S)


def run(platform: Platform, kill: Kill, key: str) -> tuple[Verdict, list[CallResult]]:
    """Kill and restart the victim, wait for the streams, and judge their bills."""
    before = frozenset(emitted(platform))
    for witness in platform.witnesses.values():
        witness.faults(output_tokens=TOKENS)
    gateways = [platform.gateways[name] for name in ("gw_one", "gw_two")]
    bounded = _Bounded(platform, gateways) if "valkey" in kill.victim.processes else None
    load = Load(gateways, key, STREAMS, max_tokens=TOKENS)
    time.sleep(kill.instant_s)
    platform.kill(*kill.victim.processes)
    platform.restart(*kill.victim.processes)
    if "rep_one" in kill.victim.processes:
        platform.witnesses["rep_one"].faults(output_tokens=TOKENS)
    results = load.join() + (bounded.load.join() if bounded else [])
    verdict = judge(platform, before, results=results)
    if bounded:
        bounded.judge(verdict)
    verdict.problems += [
        f"{one.request_id or 'a call'}: ended as {one.end} {one.status} {one.code}"
        for one in results
        if one.end not in _may_end(platform, kill.victim, one)
    ]
    return verdict, results


class _Bounded:
    """Calls of a tenant that reaches its spending ceiling before the last call."""

    def __init__(self, platform: Platform, gateways: list[str]) -> None:
        self._platform = platform
        self._key = platform.tenant("pl_tokens", ceiling_nanos=CEILING_NANOS)
        self.load = Load(gateways, self._key, BOUNDED_CALLS, max_tokens=BOUNDED_TOKENS, spread_s=WINDOW_S + 1)

    def judge(self, verdict: Verdict) -> None:
        """Check that the tenant reached its ceiling and never exceeded it."""
        spent = sum(one["amount_nanos"] for one in records(self._platform, self._key))
        verdict.ceiling_share = spent / CEILING_NANOS
        if spent > CEILING_NANOS:
            verdict.problems.append(f"{spent} nanodollars were spent under a ceiling of {CEILING_NANOS}")
        if (last := self.load.results[-1]).code != "insufficient_quota":
            verdict.problems.append(f"the ceiling was not reached: the last call ended {last.end} {last.code}")


def _may_end(platform: Platform, victim: Victim, one: CallResult) -> set[End]:
    """The allowed ends of a call: done, or an end that the kill of its gateway, a replica or Redis explains."""
    ends: set[End] = {"done"}
    if "gw_one" in victim.processes and one.gateway == platform.gateways["gw_one"]:
        ends |= {"cut", "refused"}
    if "rep_one" in victim.processes:
        ends |= {"error", "refused"}
    if "valkey" in victim.processes:
        ends |= {"refused"}
    return ends
