"""Shares out what each replica cost, hour by hour: reads its windows, rates and owners, and stores the rows once.

The computation is in the pure modules; this one loads and stores. A replica's hours are shared out in order, because
each begins with the charge below one nanodollar that the last one left. An hour without a rate stops its
replica until the rate is there: it is not taken as free.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import redis as redis_client
import structlog
from sqlalchemy import Engine
from sqlmodel import Session, col, select

from billing import metrics
from billing.costs import cost_functions, due_hours, price_book
from billing.costs.allocation import PLATFORM, Allocation, CostOwner, OwnerWork, ReplicaSlice, allocate
from billing.costs.cost_functions import FittedFunction, ReplicaKind
from billing.costs.models import CostHour, CostRow, ReplicaCostWindow
from billing.costs.owners import PlacementGroup, declared, pins_by_group, work_of_owners
from billing.costs.rates import MS_PER_HOUR, DatedRate, NoRate, rates_of
from billing.costs.replica_time import charges, spans
from billing.costs.settings import CostSettings
from billing.costs.step_model import RATIO_PPM_MAX, RATIO_PPM_MIN, UNFITTED, StepWork
from billing.costs.window_reader import delete_old, store_windows
from billing.locks import serialize_decision
from core import clock
from core.contracts.costs import CostWindow
from core.db import database_now, unit_of_work

_ALLOCATE_EVERY_S: Final = 60
_DELETE_EVERY_S: Final = 3_600

_log = structlog.get_logger()


class HourCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one replica in one hour, as it is stored."""

    replica_id: str
    hour_ms: int
    kind: ReplicaKind
    pool: str
    function: FittedFunction | None
    charge: int
    carry_in: int
    paid_ms: int
    busy_ms: int
    allocation: Allocation

    @property
    def ratio_ppm(self) -> int | None:
        """Predicted over measured busy time; None before a fit."""
        return None if self.function is None else self.allocation.ratio_ppm

    @property
    def is_flagged(self) -> bool:
        """Whether its cost function is flagged, or predicted too little or too much of its busy time."""
        if self.function is None:
            return False
        ratio = self.ratio_ppm
        return bool(self.function.quality.flags) or not (ratio is None or RATIO_PPM_MIN <= ratio <= RATIO_PPM_MAX)


class AllocationRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one run did. ``without_rate`` are replicas that have no rate for the hour that is due."""

    hours: int
    without_rate: frozenset[str] = frozenset()


class CostAttribution:
    """Cost attribution as a job of the billing worker. What is not done when the worker ends waits for the next one."""

    def __init__(self, engine: Engine, redis: redis_client.Redis, settings: CostSettings) -> None:
        self._engine = engine
        self._redis = redis
        self._settings = settings
        self._without_rate: frozenset[str] = frozenset()
        self._allocate_due = self._delete_due = time.monotonic()

    def run_once(self) -> None:
        """Store windows; once a minute share out the hours that are due, once an hour delete old windows."""
        store_windows(self._engine, self._redis, self._settings)
        if time.monotonic() >= self._allocate_due:
            self._allocate_due = time.monotonic() + _ALLOCATE_EVERY_S
            without_rate = allocate_due(self._engine, self._settings).without_rate
            if without_rate - self._without_rate:
                _log.warning("costs wait for a rate of the replicas", replicas=sorted(without_rate))
            self._without_rate = without_rate
        if time.monotonic() >= self._delete_due:
            delete_old(self._engine, self._settings)
            self._delete_due = time.monotonic() + _DELETE_EVERY_S


def allocate_due(engine: Engine, settings: CostSettings) -> AllocationRun:
    """Share out all hours that ended long enough ago. One transaction per hour, so that a run can be stopped. Raises
    Unavailable while another run holds the allocation.
    """
    stored, blocked = 0, set[str]()
    while True:
        with unit_of_work(engine) as session:
            serialize_decision(session, "the cost allocation")
            now_ms = clock.to_ms(database_now(session))
            border_ms = due_hours.allocation_border_ms(session, settings)
            due = due_hours.due(session, before_ms=border_ms, limit=_limit(settings))
            hours = [(replica_id, hour_ms) for replica_id, hour_ms in due if replica_id not in blocked]
            first = [(replica_id, hour_ms) for replica_id, hour_ms in hours if hour_ms == hours[0][1]]
            if not first:
                waiting = set(due_hours.unrated(session, before_ms=border_ms))
                metrics.COST_HOURS_REFUSED.inc(len(waiting))
                return AllocationRun(hours=stored, without_rate=frozenset(blocked | waiting))
            found, without_rate = compute(session, first, now_ms=now_ms, settings=settings)
            for each in found:
                _store(session, each)
            blocked |= without_rate
            stored += len(found)
        metrics.COST_HOURS.inc(len(found))


class Preview(NamedTuple):
    """Hours that are not shared out for good, as they would be now. ``until_ms`` is the first hour that is not there,
    None when all are.
    """

    hours: list[HourCost]
    until_ms: int | None


def preview(
    session: Session, settings: CostSettings, *, hours_max: int, start_ms: int = 0, end_ms: int | None = None
) -> Preview:
    """The oldest ``hours_max`` hours in ``[start_ms, end_ms)`` that are not shared out yet, the running one included.
    Stores nothing. Replicas without a rate are left out. What hours before ``start_ms`` leave below one
    nanodollar is not in it.
    """
    now_ms = clock.to_ms(database_now(session))
    before_ms = now_ms if end_ms is None else min(now_ms, end_ms)
    due = due_hours.due(session, before_ms=before_ms, after_ms=start_ms, limit=_limit(settings))
    wanted = sorted({hour_ms for _, hour_ms in due})
    found: list[HourCost] = []
    carries: dict[str, int] = {}
    for hour_ms in wanted[:hours_max]:
        replicas = [pair for pair in due if pair[1] == hour_ms]
        hour, _ = compute(session, replicas, now_ms=now_ms, settings=settings, carries=carries)
        carries |= {each.replica_id: each.allocation.carry for each in hour}
        found += hour
    return Preview(found, wanted[hours_max] if len(wanted) > hours_max else None)


def _limit(settings: CostSettings) -> int:
    return settings.cost_allocation_hours_max * 1_000


def compute(
    session: Session,
    hours: Sequence[tuple[str, int]],
    *,
    now_ms: int,
    settings: CostSettings,
    carries: dict[str, int] | None = None,
) -> tuple[list[HourCost], set[str]]:
    """The costs of some replicas in one hour, and the replicas without a rate. ``carries`` replaces stored carries."""
    (hour_ms,) = {hour_ms for _, hour_ms in hours}
    owners = work_of_owners(
        session, start_ms=hour_ms, end_ms=hour_ms + MS_PER_HOUR, request_hours_max=settings.cost_request_hours_max
    )
    rates = price_book.list_rates(session)
    pinned = pins_by_group(session, rates, hour_ms=hour_ms, now_ms=now_ms)
    found, without_rate = [], set()
    for replica_id, _ in hours:
        carry = (carries or {}).get(replica_id)
        if carry is None:
            carry = _stored_carry(session, replica_id, hour_ms)
        try:
            found.append(
                _cost_of(
                    session, (replica_id, hour_ms), owners.get(replica_id, []), pinned, rates, carry, now_ms, settings
                )
            )
        except NoRate:
            without_rate.add(replica_id)
    return found, without_rate


def _cost_of(
    session: Session,
    hour: tuple[str, int],
    owners: list[OwnerWork],
    pinned: Mapping[PlacementGroup, Mapping[CostOwner, int]],
    rates: Sequence[DatedRate],
    carry: int,
    now_ms: int,
    settings: CostSettings,
) -> HourCost:
    replica_id, hour_ms = hour
    lost_after_ms = settings.cost_lost_after_s * 1000
    windows = _windows(session, replica_id, hour_ms - MS_PER_HOUR, hour_ms + MS_PER_HOUR + lost_after_ms)
    mine = [window for window in windows if hour_ms <= window.start_ms < hour_ms + MS_PER_HOUR]
    last = mine[-1]
    kind = ReplicaKind(base_model=last.base_model, rank_max=last.rank_max, engine=last.engine, device=last.device)
    function = cost_functions.in_force(session, kind)
    time = spans(windows, now_ms=now_ms, lost_after_ms=lost_after_ms)
    time = [span for span in time if hour_ms <= span.reported_ms < hour_ms + MS_PER_HOUR]
    served = [window for window in mine if window.state != "starting"]
    busy_ms = sum(span.busy_ms for span in time if span.state not in ("starting", "lost"))
    its_rates = rates_of(rates, base_model=kind.base_model, rank_max=kind.rank_max, pool=last.pool)
    given = ReplicaSlice(
        charges=charges(time, its_rates),
        busy_ms=busy_ms,
        stall_ms=min(busy_ms, sum(window.stall_ms for window in served)),
        work=_sum_of(served),
        probes=OwnerWork(
            owner=PLATFORM,
            prefill_tokens=sum(window.probe_prefill_tokens for window in served),
            decode_tokens=sum(window.probe_decode_tokens for window in served),
            sequence_steps=sum(window.probe_decode_tokens for window in served),
        ),
        owners=owners,
        pins=declared(
            pinned.get((kind.base_model, kind.rank_max), {}),
            its_rates,
            [(span.start_ms, span.end_ms) for span in time],
        ),
    )
    return HourCost(
        replica_id=replica_id,
        hour_ms=hour_ms,
        kind=kind,
        pool=last.pool,
        function=function,
        charge=sum(given.charges.values()),
        carry_in=carry,
        paid_ms=sum(span.end_ms - span.start_ms for span in time),
        busy_ms=busy_ms,
        allocation=allocate(given, UNFITTED if function is None else function.weights, carry=carry),
    )


def _windows(session: Session, replica_id: str, from_ms: int, until_ms: int) -> list[CostWindow]:
    found = (
        select(ReplicaCostWindow)
        .where(
            ReplicaCostWindow.replica_id == replica_id,
            ReplicaCostWindow.start_ms >= from_ms,
            ReplicaCostWindow.start_ms <= until_ms,
        )
        .order_by(col(ReplicaCostWindow.start_ms), col(ReplicaCostWindow.boot_id))
    )
    return msgspec.convert(session.exec(found).all(), list[CostWindow], from_attributes=True)


def _sum_of(windows: Sequence[CostWindow]) -> StepWork:
    return StepWork(**{name: sum(getattr(each, name) for each in windows) for name in StepWork.__struct_fields__})


def _stored_carry(session: Session, replica_id: str, hour_ms: int) -> int:
    last = (
        select(CostHour.carry)
        .where(CostHour.replica_id == replica_id, CostHour.hour_ms < hour_ms)
        .order_by(col(CostHour.hour_ms).desc())
        .limit(1)
    )
    return session.exec(last).first() or 0


def _store(session: Session, cost: HourCost) -> None:
    session.add(
        CostHour(
            replica_id=cost.replica_id,
            hour_ms=cost.hour_ms,
            base_model=cost.kind.base_model,
            rank_max=cost.kind.rank_max,
            pool=cost.pool,
            cost_function_id=None if cost.function is None else cost.function.id,
            charge=cost.charge,
            carry_in=cost.carry_in,
            carry=cost.allocation.carry,
            total_nanos=cost.allocation.total_nanos,
            paid_ms=cost.paid_ms,
            busy_ms=cost.busy_ms,
            ratio_ppm=cost.ratio_ppm,
            created_at=database_now(session),
        )
    )
    session.flush()  # the rows refer to it
    session.add_all(
        CostRow(
            replica_id=cost.replica_id,
            hour_ms=cost.hour_ms,
            **msgspec.structs.asdict(row.owner),
            kind=row.kind,
            nanos=row.nanos,
        )
        for row in cost.allocation.rows
    )
    session.flush()
