"""Who used a replica in a piece of time, for the allocation of its cost: the work of requests, from recorded usage, and
pinned slots, of which every replica of a placement group keeps each. Nothing else that shares out costs reads records.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import sqlalchemy as sa
from sqlmodel import Session

from billing.costs.allocation import CostOwner, OwnerWork
from billing.costs.rates import MS_PER_HOUR, DatedRate, slot_charge
from billing.prices import price_book
from billing.resources import sources
from core import clock
from core.ids import first_id_of_ms
from core.rank_classes import class_for

# A request's prompt counts when its first token came (or, without one, when it ended), its output evenly from there to
# its end, its stall at its end. ``done_…`` is what it had decoded by an instant, so adjacent pieces of time add up.
# The first output token comes out of the prefill. A decode step reads the prompt and what was decoded before, so that d
# of them read d·p + d(d+1)/2 tokens.
_CLAIMS = sa.text("""
WITH timed AS (
    SELECT r.replica_id, r.tenant_id, coalesce(r.adapter_id, '') AS adapter_id, v.plan_id,
           r.input_tokens AS prompt, greatest(r.input_tokens - r.cached_tokens, 0) AS computed,
           r.aborted_prefill_tokens AS aborted, greatest(r.output_tokens - 1, 0) AS decoded, r.stall_ms,
           floor(extract(epoch FROM r.settled_at) * 1000)::bigint AS ends,
           least(
               floor(extract(epoch FROM r.settled_at) * 1000)::bigint,
               CASE WHEN r.output_tokens = 0 THEN floor(extract(epoch FROM r.settled_at) * 1000)::bigint
               ELSE floor(extract(epoch FROM r.started_at) * 1000)::bigint + coalesce(r.first_token_ms, 0) END
           ) AS first
    FROM usage_records r JOIN price_versions v ON v.id = r.price_version_id
    WHERE r.request_id >= :low AND r.request_id < :high
), counted AS (
    SELECT *,
           CASE WHEN ends > first THEN
               decoded * (greatest(least(:end_ms, ends), first) - first) / (ends - first)
               ELSE CASE WHEN ends < :end_ms THEN decoded ELSE 0 END END AS done_after,
           CASE WHEN ends > first THEN
               decoded * (greatest(least(:start_ms, ends), first) - first) / (ends - first)
               ELSE CASE WHEN ends < :start_ms THEN decoded ELSE 0 END END AS done_before,
           first >= :start_ms AND first < :end_ms AS prefilled,
           ends >= :start_ms AND ends < :end_ms AS ended
    FROM timed WHERE ends >= :start_ms AND first < :end_ms
)
SELECT replica_id, tenant_id, adapter_id, plan_id,
       coalesce(sum(greatest(computed - aborted, 0)) FILTER (WHERE prefilled), 0)::bigint AS prefill_tokens,
       coalesce(sum(least(aborted, computed)) FILTER (WHERE prefilled), 0)::bigint AS aborted_prefill_tokens,
       sum(done_after - done_before)::bigint AS decode_tokens,
       sum((done_after - done_before) * prompt + done_after * (done_after + 1) / 2
           - done_before * (done_before + 1) / 2)::bigint AS context_tokens,
       (sum(done_after - done_before) + count(*) FILTER (WHERE prefilled))::bigint AS sequence_steps,
       coalesce(sum(stall_ms) FILTER (WHERE ended), 0)::bigint AS stall_ms
FROM counted GROUP BY replica_id, tenant_id, adapter_id, plan_id ORDER BY replica_id, tenant_id, adapter_id, plan_id
""")
_RANKS: Final = sa.text("""
SELECT DISTINCT base_model, rank_max FROM replica_cost_windows WHERE start_ms >= :start_ms AND start_ms < :end_ms
""")

PlacementGroup = tuple[str, int]
"""A base model and the largest rank of its replicas."""


def work_of_owners(
    session: Session, *, start_ms: int, end_ms: int, request_hours_max: int
) -> dict[str, list[OwnerWork]]:
    """What usage says of each replica's work in ``[start_ms, end_ms)``, by replica. Requests that began more than
    ``request_hours_max`` before are not found: ids are ordered by time, which makes this a range of the primary key.
    """
    parameters = {
        "start_ms": start_ms,
        "end_ms": end_ms,
        "low": first_id_of_ms("req", start_ms - request_hours_max * MS_PER_HOUR),
        "high": first_id_of_ms("req", end_ms + MS_PER_HOUR),  # a gateway's clock may be ahead
    }
    found: dict[str, list[OwnerWork]] = defaultdict(list)
    for row in session.connection().execute(_CLAIMS, parameters).mappings():
        owner = CostOwner(tenant_id=row["tenant_id"], adapter_id=row["adapter_id"], plan_id=row["plan_id"])
        work = {name: row[name] for name in OwnerWork.__struct_fields__ if name != "owner"}
        found[row["replica_id"]].append(OwnerWork(owner=owner, **work))
    return found


def pins_by_group(
    session: Session, rates: Sequence[DatedRate], *, hour_ms: int, now_ms: int
) -> Mapping[PlacementGroup, Mapping[CostOwner, int]]:
    """The slot-milliseconds of an hour by the placement group that keeps the pins, and by owner: those that tenants pay
    for, whether the hour is metered yet or not. Nothing where no rate declares a cost of slots.
    """
    if not any(rate.slot_nanos_per_hour for rate in rates):
        return {}
    start = clock.from_ms(hour_ms)
    uses = sources.pins(session, start, min(start + timedelta(hours=1), max(start, clock.from_ms(now_ms))))
    book = price_book.load(session, {use.owner.tenant_id for use in uses})
    rows = session.connection().execute(_RANKS, {"start_ms": hour_ms, "end_ms": hour_ms + MS_PER_HOUR})
    ranks: defaultdict[str, set[int]] = defaultdict(set)
    for base_model, rank_max in rows:
        ranks[base_model].add(rank_max)
    found: defaultdict[PlacementGroup, Counter[CostOwner]] = defaultdict(Counter)
    for use in uses:
        rank_max = class_for(use.owner.rank_class, tuple(ranks[use.owner.base_model]))
        if rank_max is not None:
            version = book.in_force(use.owner.tenant_id, start)
            owner = CostOwner(
                tenant_id=use.owner.tenant_id,
                adapter_id=use.owner.adapter_id,
                plan_id="" if version is None else version.plan_id,
            )
            found[use.owner.base_model, rank_max][owner] += use.units
    return found


def declared(
    slot_ms: Mapping[CostOwner, int], rates: Sequence[DatedRate], paid: Sequence[tuple[int, int]]
) -> dict[CostOwner, int]:
    """The charges of pins on a replica that was paid for in these parts of the hour. Pure."""
    one_slot = sum(slot_charge(rates, start_ms, end_ms, 1) for start_ms, end_ms in paid)
    return {owner: one_slot * slot_ms[owner] // MS_PER_HOUR for owner in sorted(slot_ms)}
