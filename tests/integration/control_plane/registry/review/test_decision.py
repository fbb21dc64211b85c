"""Decisions that are made at the same time."""

from concurrent.futures import ThreadPoolExecutor

from control_plane.registry.models import Revision
from control_plane.registry.review import decision
from core import db
from tests.conftest import wait_until
from tests.fixtures.control_plane.registry_rows import add_revision


def test_of_two_revisions_that_become_ready_at_once_one_sets_prod(api, base, engine):
    tenant = api.tenant()
    tenant.adapter("bot", base)
    one, other = (add_revision(engine, tenant, "bot", ready=False)["id"] for _ in range(2))

    def accept(session, revision_id: str) -> None:
        decision.lock_adapter(session, revision_id)
        decision.accept(session, session.get_one(Revision, revision_id))

    def accept_other() -> None:
        with db.unit_of_work(engine) as session:
            accept(session, other)

    def other_waits() -> bool:
        with engine.connect() as connection:
            return connection.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE NOT granted").scalar_one() > 0

    with ThreadPoolExecutor(1) as pool:
        with db.unit_of_work(engine) as session:
            accept(session, one)
            waiting = pool.submit(accept_other)
            wait_until(other_waits, what="the second revision to wait for the first")
        waiting.result(30)
    aliases = tenant.http.get("/api/v1/adapters/bot/aliases").json()["data"]
    assert [(alias["name"], alias["revision"]) for alias in aliases] == [("prod", one)]
