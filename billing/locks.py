"""Advisory locks that serialize billing's decisions until the end of the transaction. They guard decisions that read
before they write; database constraints guard what must never be wrong.
"""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, select

from core.errors import Unavailable

_NAMESPACE: Final = 1_650_551_916  # "bill" in ASCII: separates these numbers from other packages' locks


def serialize_decision(session: Session, decision: str) -> None:
    """Wait until no other open transaction holds this decision. Raises Unavailable after the session's lock timeout."""
    try:
        session.exec(select(sa.func.pg_advisory_xact_lock(_NAMESPACE, sa.func.hashtext(decision))))
    except OperationalError as error:
        raise Unavailable(
            f"another change holds {decision}; try again in a few seconds.", code="billing_busy", retry_after_s=5
        ) from error
