"""What must be true after every fault: witness = ledger = usage report, nothing held, nothing twice.

A request that ended cleanly, or whose caller or time limit ended it, is billed exactly what its engine emitted. One
whose gateway or replica was killed may be billed up to 64 tokens or one second less, and never more.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa

from billing import service as billing
from core import keys
from core.contracts import CHECKPOINT_TOKENS_MAX
from core.db import unit_of_work
from tests.chaos.platform import Platform
from tests.conftest import wait_until

CRASHED = frozenset({"gateway_gone", "replica_gone"})


@dataclass(frozen=True)
class Emitted:
    """What witnesses journalled of one request."""

    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Requests by what became of them; ``problems`` is empty when all that is promised was kept."""

    requests: int
    exact: int
    estimated: int
    short: int
    tail_tokens: int
    tail_tokens_max: int
    lost: int
    duplicated: int
    problems: tuple[str, ...]


def emitted(platform: Platform) -> dict[str, Emitted]:
    """By request id, over all witnesses and all of their boots."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for witness in platform.witnesses.values():
        for request_id, journal in witness.journal().items():
            found[request_id][0] += journal.prompt_tokens
            found[request_id][1] += journal.output_tokens
    return {request_id: Emitted(*counts) for request_id, counts in found.items()}


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
    """Usage records by request id."""
    with platform.engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT * FROM usage_records")).mappings().all()
    return {row["request_id"]: row for row in rows}


def judge(
    platform: Platform,
    before: frozenset[str] = frozenset(),
    *,
    tail_max: int = CHECKPOINT_TOKENS_MAX,
    crashed: frozenset[str] = CRASHED,
) -> Verdict:
    """Compare what was emitted since ``before`` (request ids known then) with the ledger, and the ledger with the usage
    report; see that all holds are back. ``crashed`` are the outcomes that may be billed short.
    """
    quiet(platform)
    witnessed = {name: one for name, one in emitted(platform).items() if name not in before}
    ledger = recorded(platform)
    problems, tails, lost, exact, estimated = [], [], 0, 0, 0
    for request_id, one in witnessed.items():
        record = ledger.get(request_id)
        if record is None:
            tails.append(one.output_tokens)
            if one.output_tokens > tail_max:
                lost += 1
                problems.append(f"{request_id}: {one} and no record")
            continue
        estimated += bool(record["estimated"])
        tail = one.output_tokens - record["output_tokens"]
        allowed = tail_max if record["outcome"] in crashed else 0
        exact += tail == 0
        if tail:
            tails.append(tail)
        if not 0 <= tail <= allowed or record["input_tokens"] != one.input_tokens:
            billed = (record["input_tokens"], record["output_tokens"], record["outcome"])
            problems.append(f"{request_id}: {one}, billed {billed}")
    unknown = [name for name, record in ledger.items() if name not in before and name not in witnessed
               and record["output_tokens"]]  # fmt: skip
    problems += [f"{name}: billed, and no witness emitted it" for name in unknown]
    problems += _report_problems(platform, ledger)
    return Verdict(
        requests=len(witnessed), exact=exact, estimated=estimated, short=len(tails), tail_tokens=sum(tails),
        tail_tokens_max=max(tails, default=0), lost=lost, duplicated=len(unknown), problems=tuple(problems),
    )  # fmt: skip


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
