"""From when to when each adapter was pinned: events that are written once, in the transaction of their cause.

Billing reads them as intervals through the view ``pinned_slots``. What is pinned is decided in ``pins``.
"""

from collections.abc import Collection

from sqlalchemy.dialects.postgresql import distinct_on
from sqlmodel import Session, col, select

from control_plane.registry.models import Adapter, PinEvent
from core.contracts.routes import Pin
from core.db import database_now


def record(session: Session, adapter: Adapter, in_force: Collection[Pin]) -> None:
    """Note which of an adapter's pins begin and end now."""
    wanted = {pin.engine_name: pin.rank_class for pin in in_force}
    known = _known(session, adapter.id)
    changed = [name for name in sorted(wanted.keys() | known.keys()) if wanted.get(name) != known.get(name)]
    if not changed:
        return
    now = database_now(session)
    session.add_all(
        PinEvent(
            tenant_id=adapter.tenant_id,
            adapter_id=adapter.id,
            engine_name=name,
            base_model=adapter.base_model,
            rank_class=wanted.get(name) or known[name],
            pinned=name in wanted,
            at=now,
        )
        for name in changed
    )
    session.flush()


def differs(session: Session, adapter: Adapter, in_force: Collection[Pin]) -> bool:
    """Whether the history knows other pins of an adapter than those in force."""
    return {pin.engine_name: pin.rank_class for pin in in_force} != _known(session, adapter.id)


def adapters_with_pins(session: Session) -> list[str]:
    """The adapters that are pinned as far as the history knows."""
    newest = (
        select(PinEvent)
        .ext(distinct_on(col(PinEvent.engine_name)))
        .order_by(col(PinEvent.engine_name), col(PinEvent.at).desc(), col(PinEvent.id).desc())
    )
    return sorted({event.adapter_id for event in session.exec(newest) if event.pinned})


def _known(session: Session, adapter_id: str) -> dict[str, int]:
    """The rank classes of an adapter's pins, by engine name."""
    events = select(PinEvent).where(PinEvent.adapter_id == adapter_id).order_by(col(PinEvent.at), col(PinEvent.id))
    newest = {event.engine_name: event for event in session.exec(events)}
    return {name: event.rank_class for name, event in newest.items() if event.pinned}
