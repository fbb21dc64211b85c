"""The locks that make billing's decisions one at a time, held to the end of the transaction. They guard decisions that
read before they write; what must never be wrong is kept by constraints as well.
"""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, select

from core.errors import Unavailable

_NAMESPACE: Final = 1_650_551_916  # "bill" in ASCII: keeps these numbers apart from other rooms' locks


def serialise(session: Session, decision: str) -> None:
    """Wait until no other open transaction holds this decision. Raises Unavailable after the session's lock timeout."""
    try:
        session.exec(select(sa.func.pg_advisory_xact_lock(_NAMESPACE, sa.func.hashtext(decision))))
    except OperationalError as error:
        raise Unavailable(
            f"another change holds {decision}; try again in a few seconds.", code="billing_busy", retry_after_s=5
        ) from error
