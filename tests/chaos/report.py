"""The report of a chaos run as docs/RELIABILITY.md. It formats results; it measures and judges nothing."""

import os
import platform as machine
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.chaos import batches, control, kills, settings_table
from tests.chaos.batches import BatchResult
from tests.chaos.control import ControlResult
from tests.chaos.kills import Kill, Victim
from tests.chaos.load import CallResult
from tests.chaos.matrix import Row
from tests.chaos.verdict import Verdict


@dataclass(frozen=True)
class RowResult:
    row: Row
    summary: str
    failed: bool

    @property
    def found(self) -> str:
        return f"**failed**: {self.summary}" if self.failed else self.summary


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

    def add(self, kill: Kill, verdict: Verdict, results: Sequence[CallResult]) -> None:
        self.runs += 1
        self.whole += sum(one.end == "done" for one in results)
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
    """The final check of the ledger: numbers of tenants and records, and the differences that it found."""

    tenants: int
    records: int
    problems: Sequence[str]


_HEAD = """# Reliability

`make chaos` breaks a real data plane on purpose, and this page reports the effects on requests and on money. The data
plane has Valkey, Postgres, a billing worker, gateways, and witness replicas that journal every token before they send
it. After each fault, the run compares the emitted tokens with the ledger. It also compares the ledger with the usage
report and with Redis's counters of months and of spending, for the tenant and for its key. No limit and no replica may
still hold a reservation. `python -m tests.chaos` writes this page: edit the code, not the page.
"""
_KILLS = """
## Killed at random instants

The run sends SIGKILL under {streams} streams of {tokens} tokens, over two gateways and two replicas. The instant lies
within {window:g} s and follows from the victim's name and a seed (from {first} on). Then the run starts the victim
again. Two victims with a plus are killed at the same instant. The column of requests counts those that reached a
replica. A request is *whole* when its caller received its end, *exact* when the bill equals the tokens that its replica
emitted, and *short* when the bill is lower. Short by up to 64 tokens, in the tenant's favor, is promised for requests
whose own gateway or replica died, and for no others. A stream may be cut without an event only if its own gateway died.
It may end with an error event only if a replica died. It may be refused (with a status, before it begins) only if
either of them or Redis died. Rows are those of the fault matrix.

| row | killed | kills | requests | whole | exact | short | longest tail | lost | duplicated | broken promises |
|---|---|---|---|---|---|---|---|---|---|---|
"""
_CEILING = """
When Valkey is killed, a tenant sends {calls} more calls before and after the kill. Its spending ceiling allows fewer
calls. The tenant must reach the ceiling and never exceed it: it spent at most {share:.1%} of it.
"""
_ROWS = """
## Broken in other ways

After each of these rows, too, the run compares all tokens that the callers received with the ledger. They must agree to
the token, except in rows that kill a gateway or a replica, or take its memory.

The last column names the code that checks the promise. `make soak` runs the rows with a plus, too.

| row | fault | promise | found | shown by |
|---|---|---|---|---|
"""
_SETTINGS = """
## Settings of this run

Some times are shorter here than the defaults, so that a run takes minutes. Some rows use their own settings. Each line
names the rows that depend on the setting. All other settings have their defaults.

| setting | default | here | rows |
|---|---|---|---|
"""
_CLOSING = """
## The ledger at the end

After all faults, the run checks every tenant that took part: {tenants} tenants, {records} usage records. It compares
the ledger, the usage report, and Redis's counters of months and spending for tenants and keys. It also checks that no
level and no replica holds a reservation.
{found}
"""
_CONTROL = """
## The control plane killed under changes

This part runs on another stack, in which the control plane itself publishes. It creates and revokes keys through the
API, one after the other, beside {streams} streams. Then it kills the process and starts it again. Two promises are
checked: an acknowledged change takes effect at the gateway within {effect_s} s after the kill, and no stream is
affected.

| killed | kills | changes acknowledged | unanswered | streams | ended whole | broken promises |
|---|---|---|---|---|---|---|
"""
_BATCHES = """
## Batches killed under their lines

On the same stack, a batch process sends the lines of a batch, {at_once} at a time, through a gateway to a replica, and
a billing worker keeps the ledger. A process is killed under them and starts again. Three promises are checked: each
line is answered and billed once; the batch shows the tokens that the ledger has; and each token that the replica
journaled is billed, or is a cost of the platform (*yielded*), but for up to 64 of a line whose gateway or replica died.

| killed | kills | lines | lost | duplicated | tokens billed | yielded | in no record | broken promises |
|---|---|---|---|---|---|---|---|---|
"""
_LIMITS = """
## What this does not show

- SIGKILL keeps the page cache. The data that a power cut destroys is not tested here.
- Witness replicas run no model. `tests/e2e/test_survival.py` tests kills of real engines, and of every process of a
  whole platform.
- A request that dies before its first checkpoint (within a quarter of a second) is not billed and has no record.
- During an outage of Redis that is longer than a lease (20 s), another gateway settles running requests by their last
  checkpoint. Their own gateway then ends them with an error event and bills their further use in a separate record
  (`<request id>:rest`).
- The gateway notices that a caller has disappeared without a packet when the caller's kernel has acknowledged nothing
  for `TENORA_CLIENT_TCP_TIMEOUT_S`. It bills the tokens that the engine produces until then.
- Memory runs out here for one process, whose allocators see a limit (`RLIMIT_DATA`). If a cgroup reaches its limit
  instead, the kernel kills the process, as in F18.
- This run does not wait for the end of a month. `tests/unit/billing` and `tests/integration/billing` test the content
  of a period.
- Kills and rows ran one after the other within an hour, on one machine together with the load. Times are upper bounds.
"""


def markdown(
    rows: Sequence[RowResult],
    killed: Sequence[KillResult],
    closing: Closing,
    controlled: Sequence[ControlResult],
    batched: Sequence[BatchResult],
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
        lines += [
            f"| {one.row.id} | {one.row.fault} | {one.row.promise} | {one.found} | `{one.row.shown_by}`"
            f"{' +' if one.row.short else ''} |\n"
            for one in rows
        ]
    lines += [_SETTINGS, *settings_table.table()]
    found = "".join(f"\n- {one}" for one in closing.problems) or "All agree, and nothing is held."
    lines.append(_CLOSING.format(tenants=closing.tenants, records=closing.records, found=found))
    if controlled:
        lines.append(_CONTROL.format(streams=control.STREAMS, effect_s=control.EFFECT_S))
        lines += [
            f"| {one.victim.name} | {one.runs} | {one.acknowledged} | {one.unanswered} | {one.streams} | "
            f"{one.whole} | {len(one.problems)} |\n"
            for one in controlled
        ]
        lines += _broken(controlled)
    if batched:
        lines.append(_BATCHES.format(at_once=batches.AT_ONCE))
        lines += [
            f"| {one.victim.name} | {one.runs} | {one.lines} | {one.lost} | {one.duplicated} | {one.billed_tokens} | "
            f"{one.yielded_tokens} | {one.unrecorded_tokens} | {len(one.problems)} |\n"
            for one in batched
        ]
        lines += _broken(batched)
    return "".join([*lines, _LIMITS])


def _broken(results: Sequence[KillResult | ControlResult | BatchResult]) -> list[str]:
    problems = [f"- {one.victim.name}, {problem}\n" for one in results for problem in one.problems]
    return ["\nBroken promises:\n\n", *problems] if problems else []
