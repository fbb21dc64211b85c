"""What must be true after every fault: witness = ledger = usage report, nothing held, nothing twice.

A request that ended cleanly, or whose caller or time limit ended it, is billed exactly what its engine emitted. One
whose gateway or replica was killed may be billed up to 64 tokens or one second less, and never more.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import sqlalchemy as sa

from billing import service as billing
from core import keys
from core.contracts import CHECKPOINT_TOKENS_MAX
from core.db import unit_of_work
from tests.chaos.load import Heard
from tests.chaos.platform import Platform
from tests.conftest import wait_until

CRASHED = frozenset({"gateway_gone", "replica_gone"})


@dataclass(frozen=True)
class Emitted:
    """What one witness journalled of one request."""

    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(kw_only=True)
class Verdict:
    """Requests by what became of them; ``problems`` is empty when all that is promised was kept. ``abandoned_tokens``
    were emitted by replicas that were given up before their first byte: nobody is billed for them.
    """

    requests: int = 0
    exact: int = 0
    estimated: int = 0
    short: int = 0
    tail_tokens: int = 0
    tail_tokens_max: int = 0
    abandoned_tokens: int = 0
    lost: int = 0
    duplicated: int = 0
    problems: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Raises AssertionError where a promise was broken."""
        assert not self.problems, "; ".join(self.problems[:5])


def emitted(platform: Platform) -> dict[str, dict[str, Emitted]]:
    """By request id and replica, over all boots of each."""
    found: dict[str, dict[str, Emitted]] = defaultdict(dict)
    for name, witness in platform.witnesses.items():
        for request_id, journal in witness.journal().items():
            found[request_id][name] = Emitted(journal.prompt_tokens, journal.output_tokens)
    return found


def quiet(platform: Platform, *, timeout_s: float = 30) -> None:
    """Wait until nothing is held and nothing is on its way to the ledger."""

    def holds_nothing() -> bool:
        return not any(platform.client.zcard(keys.tenant_leases(tenant)) for tenant in platform.tenants.values())

    def all_recorded() -> bool:
        groups = platform.client.xinfo_groups(keys.USAGE_STREAM) if platform.client.exists(keys.USAGE_STREAM) else []
        return all(group["lag"] == 0 and group["pending"] == 0 for group in groups)

    wait_until(holds_nothing, timeout_s=timeout_s, what="every reservation to end")
    wait_until(all_recorded, timeout_s=timeout_s, what="every event to be in the ledger")


def recorded(platform: Platform) -> dict[str, Mapping[str, object]]:
    """Usage records by request id; where an estimate was billed and then the rest of it, both together."""
    with platform.engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT * FROM usage_records")).mappings().all()
    found: dict[str, Mapping[str, object]] = {}
    for row in sorted(rows, key=lambda row: row["request_id"].endswith(":rest")):
        request_id = row["request_id"].removesuffix(":rest")
        before = found.get(request_id)
        summed = {name: row[name] + before[name] for name in ("input_tokens", "output_tokens")} if before else {}
        found[request_id] = {**row, **summed}
    return found


def judge(
    platform: Platform,
    before: frozenset[str] = frozenset(),
    *,
    heard: Sequence[Heard] = (),
    crashed: frozenset[str] = CRASHED,
) -> Verdict:
    """Compare what was emitted since ``before`` (request ids known then) with the ledger, and the ledger with the usage
    report; see that all holds are back. What was ``heard`` to its end must be billed exactly; ``crashed`` are the
    outcomes that may be billed short.
    """
    quiet(platform)
    witnessed = {name: one for name, one in emitted(platform).items() if name not in before}
    ledger = recorded(platform)
    verdict = Verdict(requests=len(witnessed))
    whole = {one.request_id for one in heard if one.end == "done"}
    for request_id, by_replica in witnessed.items():
        _judge_one(verdict, request_id, by_replica, ledger.get(request_id), crashed if request_id not in whole else ())
    for request_id, record in ledger.items():
        if request_id not in before and request_id not in witnessed and record["output_tokens"]:
            verdict.duplicated += 1
            verdict.problems.append(f"{request_id}: billed, and no witness emitted it")
    verdict.problems += [f"{name}: heard to its end, and never billed" for name in whole - ledger.keys()]
    verdict.problems += _report_problems(platform, ledger)
    return verdict


def _judge_one(
    verdict: Verdict,
    request_id: str,
    by_replica: Mapping[str, Emitted],
    record: Mapping[str, object] | None,
    crashed: Collection[str],
) -> None:
    billed_by = (
        record["replica_id"] if record is not None else max(by_replica, key=lambda name: by_replica[name].output_tokens)
    )
    one = by_replica.get(billed_by, Emitted())
    verdict.abandoned_tokens += sum(other.output_tokens for name, other in by_replica.items() if name != billed_by)
    if record is None:
        tail, fits = one.output_tokens, one.output_tokens <= CHECKPOINT_TOKENS_MAX
        verdict.lost += not fits
    else:
        tail = one.output_tokens - record["output_tokens"]
        allowed = CHECKPOINT_TOKENS_MAX if record["outcome"] in crashed else 0
        fits = 0 <= tail <= allowed and record["input_tokens"] == one.input_tokens
        verdict.estimated += bool(record["estimated"])
    verdict.exact += tail == 0
    verdict.short += tail > 0
    verdict.tail_tokens += max(tail, 0)
    verdict.tail_tokens_max = max(verdict.tail_tokens_max, tail)
    if not fits:
        said = record and {name: record[name] for name in ("replica_id", "outcome", "input_tokens", "output_tokens")}
        verdict.problems.append(f"{request_id}: {dict(by_replica)}, billed {said}")


def _report_problems(platform: Platform, ledger: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Where a tenant's usage report, its quota or the ledger's own balance says something else than the records."""
    problems = []
    with unit_of_work(platform.engine) as session:
        now = session.connection().execute(sa.text("SELECT clock_timestamp()")).scalar_one()
        for tenant in platform.tenants.values():
            buckets = billing.usage(
                session, tenant_id=tenant, start=now - timedelta(days=1), end=now + timedelta(days=1), bucket="1d"
            )
            shown = sum(bucket.input_tokens + bucket.output_tokens for bucket in buckets)
            records = [record for record in ledger.values() if record["tenant_id"] == tenant]
            total = sum(record["input_tokens"] + record["output_tokens"] for record in records)
            if shown != total:
                problems.append(f"{tenant}: the usage report says {shown} tokens, the ledger {total}")
            quota = platform.client.hgetall(keys.tenant_quota(tenant))
            held = {name: int(quota.get(name, 0)) for name in (b"concurrent", b"kv_pages", b"month_held")}
            if any(held.values()):
                problems.append(f"{tenant}: still holds {held}")
        unbalanced = session.connection().execute(sa.text(
            "SELECT count(*) FROM"
            " (SELECT transfer_id FROM entries GROUP BY transfer_id HAVING sum(amount_nanos) <> 0) AS unbalanced"
        )).scalar_one()  # fmt: skip
        if unbalanced:
            problems.append(f"{unbalanced} transfers do not sum to zero")
    dead = platform.client.xlen(keys.USAGE_DEAD_LETTERS)
    if dead:
        problems.append(f"{dead} dead letters")
    return problems
