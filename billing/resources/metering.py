"""Meters resources by the hour, as a job of the billing worker.

Each kind has its own meter. A meter takes the hours that have ended in order, one transaction each: what tenants used,
and that the hour is metered. Killed at any line, it has written an hour as a whole or not at all; after an outage it
fills the hours that it missed. The database refuses a second writing.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Engine
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing import metrics
from billing.locks import serialize_decision
from billing.prices.quantities import ResourceKind
from billing.resources import sources
from billing.resources.models import MeteredHour, ResourceHour
from billing.resources.settings import ResourceSettings
from billing.resources.use import HOUR, ResourceUse
from billing.subscriptions.billed_until import share_billed_until
from core.db import database_now, unit_of_work
from core.periods import EPOCH

_LAST_INSTANT: Final = HOUR - timedelta(microseconds=1)

_READ: Final[Mapping[ResourceKind, Callable[[Session, datetime], list[ResourceUse]]]] = {
    "adapter_storage": sources.storage,
    "pinned_slots": lambda session, hour: sources.pins(session, hour, hour + HOUR, subscribed=True),
    "cold_loads": sources.cold_loads,
}


class ResourceMeters:
    """The meters of all kinds. Several workers may run them; only one at a time meters a kind."""

    def __init__(self, engine: Engine, settings: ResourceSettings) -> None:
        self._engine = engine
        self._settings = settings

    def run_once(self) -> int:
        """Meter the hours that are due. Returns how many it wrote. Raises Unavailable while another worker meters."""
        return sum(self._catch_up(kind) for kind in _READ)

    def _catch_up(self, kind: ResourceKind) -> int:
        for done in range(self._settings.resource_hours_max):
            with unit_of_work(self._engine) as session:
                hour = _due(session, kind, timedelta(seconds=self._settings.resource_delay_s))
                if hour is None:
                    return done
                record(session, kind, hour, _READ[kind](session, hour))
            metrics.RESOURCE_HOURS.labels(kind).inc()
        return self._settings.resource_hours_max


def record(session: Session, kind: ResourceKind, hour: datetime, uses: Sequence[ResourceUse]) -> None:
    """Write what an hour used, and that it is metered. No close of these tenants can overtake the transaction."""
    billed_until = share_billed_until(session, {use.owner.tenant_id for use in uses})
    rows = []
    for use in uses:
        last = hour + _LAST_INSTANT
        closed = billed_until[use.owner.tenant_id]
        rows.append(
            {
                "tenant_id": use.owner.tenant_id,
                "hour": hour,
                "kind": kind,
                "adapter_id": use.owner.adapter_id,
                "rank_class": use.owner.rank_class,
                "base_model": use.owner.base_model,
                "units": use.units,
                "counted_at": last if closed is None else max(last, closed),
            }
        )
    if rows:
        session.execute(insert(ResourceHour), rows)
    session.add(MeteredHour(kind=kind, hour=hour, created_at=database_now(session)))
    session.flush()


class MeteredTenants:
    """The tenants with hours that were metered since the last look."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen: dict[ResourceKind, datetime] | None = None

    def take(self) -> set[str]:
        """The tenants; none at the first look, which only notes what is metered."""
        with unit_of_work(self._engine) as session:
            newest = {kind: _newest(session, kind) or EPOCH for kind in _READ}
            tenants: set[str] = set()
            for kind, hour in newest.items():
                since = hour if self._seen is None else self._seen[kind]
                if since < hour:
                    wanted = select(ResourceHour.tenant_id).where(
                        ResourceHour.kind == kind, col(ResourceHour.hour) > since, col(ResourceHour.hour) <= hour
                    )
                    tenants |= set(session.exec(wanted.distinct()))
        self._seen = newest
        return tenants


def _due(session: Session, kind: ResourceKind, delay: timedelta) -> datetime | None:
    """The next hour to meter: after the last one, or the newest ended one for a meter that never ran. None before it
    has ended long enough ago. Other meters of the kind wait.
    """
    serialize_decision(session, f"the meter of {kind}")
    border = (database_now(session) - delay).astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    last = _newest(session, kind)
    hour = border - HOUR if last is None else last + HOUR
    return hour if hour < border else None


def _newest(session: Session, kind: str) -> datetime | None:
    newest = select(MeteredHour.hour).where(MeteredHour.kind == kind).order_by(col(MeteredHour.hour).desc()).limit(1)
    return session.exec(newest).first()
