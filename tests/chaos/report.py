"""The report of a chaos run, as docs/RELIABILITY.md. Written from results alone: nothing in it is an opinion."""

import os
import platform as machine
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.chaos import kills
from tests.chaos.kills import Kill
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
    """Sums over the kills of one process."""

    victim: str
    runs: int = 0
    requests: int = 0
    exact: int = 0
    short: int = 0
    tail_tokens: int = 0
    tail_tokens_max: int = 0
    lost: int = 0
    duplicated: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, kill: Kill, verdict: Verdict) -> None:
        self.runs += 1
        for name in ("requests", "exact", "short", "tail_tokens", "lost", "duplicated"):
            setattr(self, name, getattr(self, name) + getattr(verdict, name))
        self.tail_tokens_max = max(self.tail_tokens_max, verdict.tail_tokens_max)
        self.problems += [f"seed {kill.seed} at {kill.instant_s:.2f} s: {problem}" for problem in verdict.problems]

    def line(self) -> str:
        return (
            f"{self.requests} requests, {self.exact} exact, {self.short} short by at most {self.tail_tokens_max}, "
            f"lost {self.lost}, duplicated {self.duplicated}, problems {len(self.problems)}"
        )


_HEAD = """# Reliability

What happens to requests and to money when something breaks, as `make chaos` found it. A real data plane (Valkey,
Postgres, a billing worker, gateways, and witness replicas that journal every token before they send it) is broken on
purpose; then what was emitted is compared with the ledger, the usage report and the quotas. Written by
`python -m tests.chaos`: edit the code, not this page.
"""
_KILLS = """
## Killed at random instants

SIGKILL of one process under {streams} streams of {tokens} tokens, over two gateways and two replicas, at an instant
within {window:g} s that follows from the process's name and a seed ({first} to {last}); then it is started again. A
request counts as *exact* when it is billed to the token what its replica emitted, and as *short* when billed less.
Short by up to 64 tokens, in the tenant's favour, is promised for requests whose own gateway or replica died, and for
nobody else.

| killed | kills | requests | exact | short | longest tail | lost | duplicated | broken promises |
|---|---|---|---|---|---|---|---|---|
"""
_ROWS = """
## Broken in other ways

| row | fault | promise | found |
|---|---|---|---|
"""
_LIMITS = """
## What this does not show

- SIGKILL leaves the page cache as it was: what a power cut takes with it is not tested here.
- Witness replicas run no model. What real engines do when they are killed is tested by `tests/e2e/test_survival.py`.
- A request that dies before its first checkpoint (in a quarter of a second) is billed nothing, and has no record.
- An outage of Redis longer than a lease (20 s) lets another gateway settle running requests by their last checkpoint.
  Their own gateway then breaks them off with an error event, and bills what they used beyond it, by a record of its own
  (`<request id>:rest`).
- Whole (not streamed) answers have no checkpoints: where their gateway dies, nobody is billed for them.
"""


def markdown(rows: list[RowResult], killed: list[KillResult], *, instants: int, seed: int) -> str:
    """The whole page."""
    run_at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    system = f"{os.cpu_count()} cores, Python {machine.python_version()}, {machine.system()}"
    lines = [_HEAD, f"\nRun on {run_at}, {system}.\n"]
    if killed:
        lines.append(_KILLS.format(
            streams=kills.STREAMS, tokens=kills.TOKENS, window=kills.WINDOW_S, first=seed, last=seed + instants - 1
        ))  # fmt: skip
        lines += [
            f"| {one.victim} | {one.runs} | {one.requests} | {one.exact} | {one.short} | {one.tail_tokens_max} | "
            f"{one.lost} | {one.duplicated} | {len(one.problems)} |\n"
            for one in killed
        ]
        problems = [f"- {one.victim}, {problem}\n" for one in killed for problem in one.problems]
        lines += ["\nBroken promises:\n\n", *problems] if problems else []
    if rows:
        lines.append(_ROWS)
        lines += [f"| {one.row.id} | {one.row.fault} | {one.row.promise} | {one.found} |\n" for one in rows]
    return "".join([*lines, _LIMITS])
