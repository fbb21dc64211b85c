"""The report of a chaos run, as docs/RELIABILITY.md. Written from results alone: nothing in it is an opinion."""

import os
import platform as machine
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.chaos import control, kills, shipped
from tests.chaos.control import ControlResult
from tests.chaos.kills import Kill, Victim
from tests.chaos.load import Heard
from tests.chaos.matrix import Row
from tests.chaos.verdict import Verdict


@dataclass(frozen=True)
class RowResult:
    row: Row
    said: str
    failed: bool

    @property
    def found(self) -> str:
        return f"**failed**: {self.said}" if self.failed else self.said


@dataclass
class KillResult:
    """Sums over the kills of one victim."""

    victim: Victim
    runs: int = 0
    requests: int = 0
    whole: int = 0
    exact: int = 0
    short: int = 0
    tail_tokens_max: int = 0
    lost: int = 0
    duplicated: int = 0
    ceiling_share_max: float = 0.0
    problems: list[str] = field(default_factory=list)

    def add(self, kill: Kill, verdict: Verdict, heard: Sequence[Heard]) -> None:
        self.runs += 1
        self.whole += sum(one.end == "done" for one in heard)
        for name in ("requests", "exact", "short", "lost", "duplicated"):
            setattr(self, name, getattr(self, name) + getattr(verdict, name))
        self.tail_tokens_max = max(self.tail_tokens_max, verdict.tail_tokens_max)
        self.ceiling_share_max = max(self.ceiling_share_max, verdict.ceiling_share)
        self.problems += [f"seed {kill.seed} at {kill.instant_s:.2f} s: {problem}" for problem in verdict.problems]

    def line(self) -> str:
        return (
            f"{self.requests} requests, {self.exact} exact, {self.short} short by at most {self.tail_tokens_max}, "
            f"lost {self.lost}, duplicated {self.duplicated}, problems {len(self.problems)}"
        )


@dataclass(frozen=True)
class Closing:
    """What the books said when all was over: of how many tenants, how many records, and what was wrong."""

    tenants: int
    records: int
    problems: Sequence[str]


_HEAD = """# Reliability

What happens to requests and to money when something breaks, as `make chaos` found it. A real data plane (Valkey,
Postgres, a billing worker, gateways, and witness replicas that journal every token before they send it) is broken on
purpose. After each time, what was emitted is compared with the ledger, and the ledger with the usage report and with
what Redis counts of months and of spending, for the tenant and for its key; and nothing may be held any more, of any
limit or replica. Written by `python -m tests.chaos`: edit the code, not this page.
"""
_KILLS = """
## Killed at random instants

SIGKILL under {streams} streams of {tokens} tokens, over two gateways and two replicas, at an instant within
{window:g} s that follows from the victim's name and a seed (from {first} on); then it is started again. Two with a plus
are killed in the same instant. Requests are those that reached a replica. One counts as *whole* when its caller heard
its end, as *exact* when it is billed to the token what its replica emitted, and as *short* when billed less. Short by
up to 64 tokens, in the tenant's favour, is promised for requests whose own gateway or replica died, and for nobody
else. A stream may be cut without a word only where its own gateway died, end with an error event only where a replica
did, and be refused (with a status, before it begins) only where either or Redis did. Rows are those of the fault
matrix.

| row | killed | kills | requests | whole | exact | short | longest tail | lost | duplicated | broken promises |
|---|---|---|---|---|---|---|---|---|---|---|
"""
_CEILING = """
Where Valkey is killed, {calls} more calls come before and after it, of a tenant whose spending ceiling allows for
fewer. It has to be reached, and never passed: at most {share:.1%} of it was spent.
"""
_ROWS = """
## Broken in other ways

After each row, too, all that its callers were served is compared, to the token except where a row's own gateway or
replica was killed.

| row | fault | promise | found |
|---|---|---|---|
"""
_SETTINGS = """
## What this ran with

So that a run takes minutes, some times are shorter here than they are shipped, and some rows set their own. Beside each
stand the rows whose times rest on it; all else is as it is shipped.

| setting | shipped | here | rows |
|---|---|---|---|
"""
_CLOSING = """
## The books at the end

After all of that, for every tenant that took part: {tenants} tenants, {records} usage records. Compared are the ledger,
the usage report, and months and spending of tenants and keys in Redis; and what is held of any level or replica.
{found}
"""
_CONTROL = """
## The control plane killed under changes

Another stack, in which the control plane itself publishes. Keys are made and revoked through the API, one after the
other, beside {streams} streams; then the process is killed and started again. Promised: what was acknowledged is so at
the gateway within {effect_s} s of the kill's end, and no stream notices.

| killed | kills | changes acknowledged | unanswered | streams | ended whole | broken promises |
|---|---|---|---|---|---|---|
"""
_LIMITS = """
## What this does not show

- SIGKILL leaves the page cache as it was: what a power cut takes with it is not tested here.
- Witness replicas run no model. What real engines do when they are killed, and what becomes of a whole platform when
  any of its processes is, is tested by `tests/e2e/test_survival.py`.
- A request that dies before its first checkpoint (in a quarter of a second) is billed nothing, and has no record.
- An outage of Redis longer than a lease (20 s) lets another gateway settle running requests by their last checkpoint.
  Their own gateway then breaks them off with an error event, and bills what they used beyond it, by a record of its own
  (`<request id>:rest`).
- A caller without a packet is noticed when its kernel has acknowledged nothing for `TENORA_CLIENT_TCP_TIMEOUT_S`. What
  its engine produces until then is billed.
- Memory runs out here for one process, which its allocators are told (`RLIMIT_DATA`). Where a cgroup's limit is reached
  the kernel kills, as in F18.
- Nobody waits here for a month to end: what a period holds is tested in `tests/unit/billing` and
  `tests/integration/billing`.
- Kills and rows were run one after the other within an hour, on one machine with the load: times are upper bounds.
- Whole (not streamed) answers have no checkpoints: where their gateway dies, nobody is billed for them.
"""


def markdown(
    rows: Sequence[RowResult],
    killed: Sequence[KillResult],
    closing: Closing,
    controlled: Sequence[ControlResult],
    *,
    seed: int,
    took_s: float,
) -> str:
    """The whole page."""
    run_at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    system = f"{os.cpu_count()} cores, Python {machine.python_version()}, {machine.system()}"
    lines = [_HEAD, f"\nRun on {run_at} in {took_s / 60:.0f} minutes, {system}.\n"]
    if killed:
        lines.append(_KILLS.format(streams=kills.STREAMS, tokens=kills.TOKENS, window=kills.WINDOW_S, first=seed))
        lines += [
            f"| {one.victim.row} | {one.victim.name} | {one.runs} | {one.requests} | {one.whole} | {one.exact} | "
            f"{one.short} | {one.tail_tokens_max} | {one.lost} | {one.duplicated} | {len(one.problems)} |\n"
            for one in killed
        ]
        if share := max(one.ceiling_share_max for one in killed):
            lines.append(_CEILING.format(calls=kills.BOUNDED_CALLS, share=share))
        lines += _broken(killed)
    if rows:
        lines.append(_ROWS)
        lines += [f"| {one.row.id} | {one.row.fault} | {one.row.promise} | {one.found} |\n" for one in rows]
    lines += [_SETTINGS, *shipped.table()]
    found = "".join(f"\n- {one}" for one in closing.problems) or "They agree, and nothing is held."
    lines.append(_CLOSING.format(tenants=closing.tenants, records=closing.records, found=found))
    if controlled:
        lines.append(_CONTROL.format(streams=control.STREAMS, effect_s=control.EFFECT_S))
        lines += [
            f"| {one.victim.name} | {one.runs} | {one.acknowledged} | {one.unanswered} | {one.streams} | "
            f"{one.whole} | {len(one.problems)} |\n"
            for one in controlled
        ]
        lines += _broken(controlled)
    return "".join([*lines, _LIMITS])


def _broken(results: Sequence[KillResult | ControlResult]) -> list[str]:
    problems = [f"- {one.victim.name}, {problem}\n" for one in results for problem in one.problems]
    return ["\nBroken promises:\n\n", *problems] if problems else []
