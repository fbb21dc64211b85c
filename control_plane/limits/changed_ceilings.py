"""Publishes the tenants whose spend ceilings billing has changed: after usage, the end of a lot, or a payment."""

from sqlalchemy import Engine

from billing.limits import ceilings
from control_plane.publishing.outbox import publish_bulk
from core.db import unit_of_work


class ChangedCeilings:
    """The worker's look at the ceilings that wait to be published. A crash before the commit leaves them waiting."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run_once(self) -> bool:
        """Publish what changed. Always returns False."""
        with unit_of_work(self._engine) as session:
            publish_bulk(session, "tenants", ceilings.take_changed(session))
        return False
