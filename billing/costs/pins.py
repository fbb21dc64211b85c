"""The declared charges of pinned slots, for the allocation of a replica's idle time (``costs.allocation.SlotPin``).

Every replica of a pool keeps every pin of the pool. The slot-milliseconds are those that tenants pay for
(``billing.resources``), whether the hour is metered yet or not.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session

from billing.costs.allocation import CostOwner, SlotPin
from billing.costs.price_book import DatedRate
from billing.costs.rates import MS_PER_HOUR, PoolRate, slot_charge
from billing.prices import price_book
from billing.resources import sources
from core import clock
from core.rank_classes import class_for

_RANKS: Final = sa.text("""
SELECT DISTINCT base_model, rank_max FROM replica_cost_windows WHERE start_ms >= :start_ms AND start_ms < :end_ms
""")

Pool = tuple[str, int]
"""A base model and the largest rank of its replicas."""


class PinnedTime(NamedTuple):
    """The slot-milliseconds of an owner in an hour."""

    owner: CostOwner
    slot_ms: int


def pins_by_pool(
    session: Session, rates: Sequence[DatedRate], *, hour_ms: int, now_ms: int
) -> Mapping[Pool, Sequence[PinnedTime]]:
    """The pins of an hour by the pool that keeps them; nothing where no pool declares a cost of slots."""
    if not any(rate.slot_nanos_per_hour for rate in rates):
        return {}
    start = clock.from_ms(hour_ms)
    uses = sources.pins(session, start, min(start + timedelta(hours=1), max(start, clock.from_ms(now_ms))))
    book = price_book.load(session, {use.owner.tenant_id for use in uses})
    rows = session.connection().execute(_RANKS, {"start_ms": hour_ms, "end_ms": hour_ms + MS_PER_HOUR})
    ranks: defaultdict[str, set[int]] = defaultdict(set)
    for base_model, rank_max in rows:
        ranks[base_model].add(rank_max)
    found: defaultdict[Pool, list[PinnedTime]] = defaultdict(list)
    for use in uses:
        rank_max = class_for(use.owner.rank_class, tuple(ranks[use.owner.base_model]))
        if rank_max is not None:
            version = book.in_force(use.owner.tenant_id, start)
            owner = CostOwner(
                tenant_id=use.owner.tenant_id,
                adapter_id=use.owner.adapter_id,
                plan_id="" if version is None else version.plan_id,
            )
            found[use.owner.base_model, rank_max].append(PinnedTime(owner, use.units))
    return found


def declared(pinned: Sequence[PinnedTime], rates: Sequence[PoolRate], paid: Sequence[tuple[int, int]]) -> list[SlotPin]:
    """The charges of pins on a replica that was paid for in these parts of the hour. Pure."""
    one_slot = sum(slot_charge(rates, start_ms, end_ms, 1) for start_ms, end_ms in paid)
    slot_ms: defaultdict[CostOwner, int] = defaultdict(int)
    for each in pinned:
        slot_ms[each.owner] += each.slot_ms
    return [SlotPin(owner=owner, charge=one_slot * slot_ms[owner] // MS_PER_HOUR) for owner in sorted(slot_ms)]
