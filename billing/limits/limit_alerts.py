"""Alerts tenants when they reach parts of their spending limits and of their commitment.

It looks at tenants whose usage was recorded or whose limit was set, in a thread of its own, so recording never waits
for it. When it starts, and then each hour, it looks at all that used anything lately: a worker that was killed may have
recorded usage that it never looked at. Each threshold of a limit is written once in its window, in order, whatever this
process remembers: its key is unique.
"""

import time
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final, NamedTuple, cast

import msgspec
import redis as redis_client
import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.charges.commitments import commitment_year
from billing.charges.inputs import period_start, read_adjusted, read_state
from billing.each_tenant import each_tenant
from billing.limits import spend_limits
from billing.limits.spend_limits import spent_in
from billing.limits.views import SpendLimitView
from billing.notifications import outbox, thresholds
from billing.notifications.event_types import SPEND_THRESHOLD
from billing.notifications.models import Notification
from billing.notifications.thresholds import Alert
from billing.prices import price_book
from billing.subscriptions.billed_until import billed_until_of
from billing.subscriptions.calendars import calendars_of
from billing.usage.metering import ActiveTenants
from billing.usage.models import UsageMonth
from billing.usage.months import month_uses
from core import redis_keys
from core.contracts.grants import TenantGrant
from core.db import LATE_COMMITS, database_now, unit_of_work
from core.loops import AFTER_PAUSE, Seconds
from core.periods import Period, month_start
from core.spend_windows import WindowBounds, window_at

_TENANT: Final = msgspec.json.Decoder(TenantGrant)
_REMEMBERED_MAX: Final = 20_000
_ALL_EVERY: Final = timedelta(hours=1)
_ALL_AT_ONCE: Final = 100  # of all tenants, in one run: those that use something now do not wait for the others


class LimitAlerts:
    """One worker's look at the tenants that it recorded usage for or that set a limit, each at most once in
    ``every_ms``, and at all others now and then.
    """

    def __init__(
        self, engine: sa.Engine, redis: redis_client.Redis, active: ActiveTenants, *, every_ms: int = 2_000
    ) -> None:
        self._engine = engine
        self._redis = redis
        self._active = active
        self._every_ns = every_ms * 1_000_000
        self._waiting: set[str] = set()
        self._others: set[str] = set()
        self._others_at: datetime | None = None
        self._looked_at: dict[str, int] = {}
        self._written: set[tuple[str, str]] = set()

    def run_once(self) -> Seconds | None:
        """Look at every tenant that is due. Those that fail are due again at the next run. Returns the seconds until
        one is due without a change.
        """
        self._waiting |= self._active.take() | self._take_others()
        now = time.monotonic_ns()
        self._looked_at = {each: at for each, at in self._looked_at.items() if now - at < self._every_ns}
        due = sorted(self._waiting - self._looked_at.keys())
        grants = self._grants(due)
        failed = each_tenant(due, "limit alerts", lambda tenant_id: self._look(tenant_id, grants.get(tenant_id)))
        self._looked_at |= dict.fromkeys(due, now)
        self._waiting = self._waiting.difference(due).union(failed)
        return AFTER_PAUSE if self._waiting or self._others else None

    def _take_others(self) -> set[str]:
        """Tenants that set a limit lately, and some of all tenants."""
        with unit_of_work(self._engine) as session:
            now = database_now(session)
            found = spend_limits.limited_since(session, now - LATE_COMMITS)
            if self._others_at is None or now >= self._others_at + _ALL_EVERY:
                self._others |= _used_lately(session, now)
                self._others_at = now
        some = sorted(self._others)[:_ALL_AT_ONCE]
        self._others -= set(some)
        return found.union(some)

    def _grants(self, tenant_ids: Collection[str]) -> dict[str, TenantGrant]:
        if not tenant_ids:
            return {}
        ids = list(tenant_ids)
        values = cast("list[bytes | None]", self._redis.hmget(redis_keys.snapshot("tenants"), ids))
        return {each: _TENANT.decode(value) for each, value in zip(ids, values, strict=True) if value is not None}

    def _look(self, tenant_id: str, grant: TenantGrant | None) -> None:
        with unit_of_work(self._engine) as session:
            alerts = due_alerts(session, tenant_id, None if grant is None else grant.limits.spend_nanos_per_month)
            new = [each for each in alerts if (tenant_id, each.dedupe_key) not in self._written]
            outbox.raise_alerts(session, tenant_id, new)
        if len(self._written) > _REMEMBERED_MAX:
            self._written.clear()
        self._written |= {(tenant_id, each.dedupe_key) for each in new}


def due_alerts(session: Session, tenant_id: str, month_limit_nanos: int | None) -> list[Alert]:
    """Every threshold that the tenant has reached, in the order of its limits. ``month_limit_nanos`` is what its plan
    allows in a UTC month.
    """
    now = database_now(session)
    alerts: list[Alert] = []
    if month_limit_nanos is not None:
        scope_id, month = f"{tenant_id}:plan-month", Period(*window_at("UTC", "month", now))
        alerts += thresholds.spend_alerts(
            scope_id=scope_id,
            scope="Your account",
            period=month,
            before_nanos=_alerted_nanos(session, tenant_id, thresholds.spend_key(scope_id, month), month_limit_nanos),
            after_nanos=month_uses(session, [tenant_id], now)[tenant_id].amount_nanos,
            limit_nanos=month_limit_nanos,
        )
    raised = spend_limits.alerted_nanos(session, tenant_id)
    for limit in spend_limits.list_limits(session, tenant_id):
        alerts += thresholds.spend_alerts(
            scope_id=f"{limit.id}:{limit.window}",
            scope=_named(limit),
            period=Period(limit.window_start, limit.window_end),
            before_nanos=raised.get(limit.id, 0) if limit.updated_at >= limit.window_start else 0,
            after_nanos=limit.spent_nanos,
            limit_nanos=limit.amount_nanos,
        )
    card = price_book.load(session, [tenant_id]).in_force(tenant_id, now)
    if card is not None and card.card.commitment_nanos:
        committed = card.card.commitment_interval
        counted = _year_of(session, tenant_id, now) if committed == "year" else _period_of(session, tenant_id, now)
        alerts += thresholds.commitment_alerts(
            period=counted.period,
            before_nanos=0,
            after_nanos=counted.used_nanos,
            commitment_nanos=card.card.commitment_nanos,
        )
    return alerts


class _Counted(NamedTuple):
    """The time of a commitment, and what counts towards it so far."""

    period: Period
    used_nanos: int


def _period_of(session: Session, tenant_id: str, now: datetime) -> _Counted:
    period = calendars_of(session, tenant_id).at(now).period_at(now)
    return _Counted(period, _charged_in(session, tenant_id, period))


def _year_of(session: Session, tenant_id: str, now: datetime) -> _Counted:
    """What invoices have counted of the year, and what is not invoiced yet. The year of a first commitment begins with
    the open period.
    """
    open_from = period_start(session, tenant_id, billed_until_of(session, tenant_id)) or now
    state = read_state(session, tenant_id, open_from)
    year = commitment_year(calendars_of(session, tenant_id).at(now), state.year_from or open_from)
    return _Counted(year, state.year_nanos + _charged_in(session, tenant_id, Period(open_from, year.end)))


def _charged_in(session: Session, tenant_id: str, period: Period) -> int:
    adjusted = read_adjusted(session, tenant_id, period)
    return spent_in(session, tenant_id, WindowBounds(*period)) + adjusted.usage_nanos + adjusted.other_nanos


def _used_lately(session: Session, now: datetime) -> set[str]:
    """The tenants with usage in this UTC month or in the one before: a month of another zone may have begun there."""
    before = month_start(month_start(now) - timedelta(days=1))
    return set(session.exec(select(UsageMonth.tenant_id).where(col(UsageMonth.month) >= before).distinct()))


def _alerted_nanos(session: Session, tenant_id: str, key: str, limit_nanos: int) -> int:
    """What was spent at the last alert by a smaller limit of the same month: the limit was raised since."""
    data = col(Notification.data)
    spent = sa.cast(sa.func.coalesce(sa.func.max(data["spent_nanos"].astext.cast(sa.BigInteger)), 0), sa.BigInteger)
    return session.exec(
        select(spent).where(
            Notification.tenant_id == tenant_id,
            Notification.event_type == SPEND_THRESHOLD,
            col(Notification.dedupe_key).startswith(key, autoescape=True),
            data["limit_nanos"].astext.cast(sa.BigInteger) < limit_nanos,
        )
    ).one()


def _named(limit: SpendLimitView) -> str:
    return "Your account" if limit.scope == "tenant" else f"The {limit.scope} {limit.subject_id}"
