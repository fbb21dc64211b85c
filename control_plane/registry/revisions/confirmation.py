"""Shows a revision as ready only when every live gateway serves it.

The worker makes a revision ready in Postgres; gateways learn of it some milliseconds later. Until they have
acknowledged it, the API shows the stage ``publishing``. Once they have, that is remembered, so a revision that was
shown as ready stays so.
"""

from collections.abc import Sequence

import msgspec
from redis import Redis
from sqlalchemy import Engine, update
from sqlmodel import Session, col, select

from control_plane.publishing.gateway_ack import AckScan
from control_plane.registry.models import Revision
from control_plane.registry.schemas import RevisionView


def confirmed(engine: Engine, redis: Redis, session: Session, views: Sequence[RevisionView]) -> list[RevisionView]:
    """The revisions, with those that a gateway may not know yet in the stage ``publishing``."""
    ready = [view.id for view in views if view.status == "ready"]
    unconfirmed = select(Revision.id, Revision.ready_change_id).where(
        col(Revision.id).in_(ready), col(Revision.ready_change_id).is_not(None)
    )
    waiting = set()
    for revision_id, change_id in session.exec(unconfirmed) if ready else ():
        assert change_id is not None, "the query leaves such rows out"
        if AckScan(engine, redis, [change_id]).run_once():
            session.execute(update(Revision).where(col(Revision.id) == revision_id).values(ready_change_id=None))
        else:
            waiting.add(revision_id)
    return [
        msgspec.structs.replace(view, status="validating", stage="publishing", sha256=None)
        if view.id in waiting
        else view
        for view in views
    ]
