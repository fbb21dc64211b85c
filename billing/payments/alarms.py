"""Alarms of payments: what an admin has to look at, written in the transaction of its cause, once for each key."""

import structlog
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col

from billing.payments import metrics
from billing.payments.models import PaymentAlarm
from core.db import database_now
from core.ids import new_id

_MESSAGE_LENGTH_MAX = 1_000
_log = structlog.get_logger()


def raise_alarm(session: Session, *, kind: str, tenant_id: str | None, message: str, dedupe_key: str) -> bool:
    """Write an alarm. Returns False if one with this ``dedupe_key`` exists."""
    written = session.execute(
        insert(PaymentAlarm)
        .values(
            id=new_id("pal"),
            kind=kind,
            tenant_id=tenant_id,
            message=message[:_MESSAGE_LENGTH_MAX],
            dedupe_key=dedupe_key,
            created_at=database_now(session),
        )
        .on_conflict_do_nothing(index_elements=["dedupe_key"])
        .returning(col(PaymentAlarm.id))
    ).first()
    if written is not None:
        metrics.ALARMS.labels(kind).inc()
        _log.error("payment alarm", kind=kind, tenant_id=tenant_id, message=message[:_MESSAGE_LENGTH_MAX])
    return written is not None
