"""Adds a row to the control plane's audit trail for commands of other packages, which do not know its tables."""

import json
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session

from core import clock
from core.ids import new_id

_INSERT = sa.text(
    "INSERT INTO audit_events (id, actor, action, target, details, created_at)"
    " VALUES (:id, 'operator', :action, :target, CAST(:details AS jsonb), :created_at)"
)


def record_operator_action(session: Session, *, action: str, target: str, **details: Any) -> None:  # JSON values
    """Record what an operator's command did, in its transaction."""
    row = {"id": new_id("aud"), "action": action, "target": target, "details": json.dumps(details)}
    session.connection().execute(_INSERT, row | {"created_at": clock.now()})
