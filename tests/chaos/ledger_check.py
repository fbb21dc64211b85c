"""Comparison of the ledger with the usage report and Redis's counters. verdict.py compares it with the witnesses."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Final

import sqlalchemy as sa

from billing.usage.buckets import usage
from core import redis_keys
from core.contracts.grants import Prices
from core.db import unit_of_work
from tests.chaos.platform import PLANS, Platform

Record = Mapping[str, object]
REST: Final = ":rest"  # suffix of a second record: the gateway came back after its request's estimate was billed
_COLUMNS: Final = (
    "request_id, tenant_id, replica_id, outcome, estimated, input_tokens, cached_tokens, aborted_prefill_tokens,"
    " output_tokens, kv_page_ms, amount_nanos, duration_ms, started_at, settled_at"
)
_SUMMED: Final = ("input_tokens", "aborted_prefill_tokens", "output_tokens", "amount_nanos", "due_nanos")
_DUE: Final = {"input_tokens": "input_tokens", "output_tokens": "output_tokens", "amount_nanos": "due_nanos"}
_HELD: Final = ("concurrent", "kv_pages", "month_held", "spend_held_nanos", "gpu_held_us")


def recorded(platform: Platform) -> dict[str, Record]:
    """Usage records by request id. An estimate and the record of its rest are added up.

    ``due_nanos`` is the amount by the prices of the tenant's plan. This function computes it independently of billing.
    """
    with platform.engine.connect() as connection:
        rows = connection.execute(sa.text(f"SELECT {_COLUMNS} FROM usage_records")).mappings().all()
    found: dict[str, Record] = {}
    for read in sorted(rows, key=lambda row: row["request_id"].endswith(REST)):
        row = {**read, "due_nanos": _due_nanos(read, PLANS[platform.plans[read["tenant_id"]]])}
        request_id = row["request_id"].removesuffix(REST)
        before = found.get(request_id)
        summed = {name: row[name] + before[name] for name in _SUMMED} if before else {}
        found[request_id] = {**row, **summed}
    return found


def problems(platform: Platform, ledger: Mapping[str, Record], tenants: Collection[str]) -> list[str]:
    """Differences between a tenant's records and the usage report, Redis or its prices, and reservations still held."""
    by_tenant: dict[str, list[Record]] = {tenant: [] for tenant in tenants}
    for record in ledger.values():
        if record["tenant_id"] in by_tenant:
            by_tenant[record["tenant_id"]].append(record)
    found = []
    with unit_of_work(platform.engine) as session:
        now = session.connection().execute(sa.text("SELECT clock_timestamp()")).scalar_one()
        for tenant, records in by_tenant.items():
            buckets = usage(
                session, tenant_id=tenant, start=now - timedelta(days=1), end=now + timedelta(days=1), bucket="1d"
            )
            due = {name: sum(record[its] for record in records) for name, its in _DUE.items()}
            shown = {name: sum(getattr(bucket, name) for bucket in buckets) for name in due}
            if differing := {name: (shown[name], due[name]) for name in due if shown[name] != due[name]}:
                found.append(f"{tenant}: the usage report has, and the ledger by its prices should have, {differing}")
            if wrong := [record for record in records if record["amount_nanos"] != record["due_nanos"]]:
                found.append(f"{tenant}: {len(wrong)} records have another amount than the prices give: {wrong[0]}")
            found += _counter_problems(platform, tenant, due["input_tokens"] + due["output_tokens"], records)
        unbalanced = session.connection().execute(sa.text(
            "SELECT count(*) FROM"
            " (SELECT transfer_id FROM entries GROUP BY transfer_id HAVING sum(amount_nanos) <> 0) AS unbalanced"
        )).scalar_one()  # fmt: skip
        if unbalanced:
            found.append(f"{unbalanced} transfers do not sum to zero")
    if dead := platform.client.xlen(redis_keys.USAGE_DEAD_LETTERS):
        found.append(f"{dead} dead letters")
    return found + _held_problems(platform)


def _due_nanos(row: Record, prices: Prices) -> int:
    """The amount of a record. KV pages are priced per second; fractions of a nanodollar are dropped."""
    tokens_nanos = (
        (row["input_tokens"] - row["cached_tokens"]) * prices.input_nanos
        + row["cached_tokens"] * prices.cached_input_nanos
        + row["output_tokens"] * prices.output_nanos
    )
    return tokens_nanos + row["kv_page_ms"] * prices.kv_page_second_nanos // 1000


def _counter_problems(platform: Platform, tenant: str, tokens: int, records: Sequence[Record]) -> list[str]:
    """Differences between a tenant's records and Redis's counters at the levels of the tenant and of its key."""
    nanos = sum(record["amount_nanos"] for record in records)
    expected = {"month_used": tokens, "month_spent_nanos": nanos, "spent_nanos": nanos, **dict.fromkeys(_HELD, 0)}
    found = []
    for level in (redis_keys.tenant_quota(tenant), redis_keys.key_quota(tenant, platform.key_ids[tenant])):
        counted = _numbers(platform.client.hgetall(level))
        differing = {name: (counted.get(name, 0), due) for name, due in expected.items() if counted.get(name, 0) != due}
        if differing:
            found.append(f"{level}: Redis and the ledger have {differing}")
    if leases := platform.client.zcard(redis_keys.tenant_leases(tenant)):
        found.append(f"{tenant}: {leases} leases are left")
    return found


def held(platform: Platform) -> dict[str, int]:
    """Reservations that the platform's level and the replicas still hold."""
    client = platform.client
    found = _numbers(client.hgetall(redis_keys.PLATFORM_QUOTA))
    left = {name: found.get(name, 0) for name in _HELD}
    for replica in platform.witnesses:
        left[f"pages of {replica}"] = int(client.hget(redis_keys.replica_held_pages(replica), "total") or 0)
        left[f"requests on {replica}"] = client.zcard(redis_keys.replica_held(replica))
    return {name: number for name, number in left.items() if number}


def _held_problems(platform: Platform) -> list[str]:
    return [f"still held: {left}"] if (left := held(platform)) else []


def _numbers(stored: Mapping[bytes, bytes]) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in stored.items() if name != b"month"}
