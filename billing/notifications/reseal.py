"""Encrypts the signing secrets of all webhooks again with the current key, so that the one before it can be dropped."""

from typing import Final

from sqlalchemy import Engine
from sqlmodel import Session, col, select

from billing.notifications.models import NotificationEndpoint
from billing.notifications.signing_secrets import SecretBox
from core.db import unit_of_work

_BATCH: Final = 200


def reseal(engine: Engine, box: SecretBox) -> int:
    """Encrypt every secret again, in batches of one transaction each. Returns the number of endpoints. Raises
    SecretUnreadable for a secret that no key opens; what was done until then stays. Can be repeated.
    """
    count, after = 0, ""
    while True:
        with unit_of_work(engine) as session:
            rows = _following(session, after)
            for row in rows:
                row.signing_secret = _again(box, row.signing_secret, row.id)
                row.previous_secret = _again(box, row.previous_secret, row.id)
        if not rows:
            return count
        count, after = count + len(rows), rows[-1].id


def _following(session: Session, after: str) -> list[NotificationEndpoint]:
    found = select(NotificationEndpoint).where(
        col(NotificationEndpoint.signing_secret).is_not(None), NotificationEndpoint.id > after
    )
    locked = found.order_by(col(NotificationEndpoint.id)).limit(_BATCH).with_for_update(key_share=True)
    return list(session.exec(locked))


def _again(box: SecretBox, sealed: bytes | None, endpoint_id: str) -> bytes | None:
    return None if sealed is None else box.seal(box.open(sealed, endpoint_id), endpoint_id)
