"""The demonstration with servers of its own, for commands, which run outside of pytest."""

import contextlib
from collections.abc import Iterator

from alembic import command

from control_plane import database_roles
from core import db
from tenora.stack import embedded_servers
from tenora.stack.program import free_port
from tests.browser.demonstration import Demonstration, demonstrated
from tests.conftest import alembic_config, running, running_valkey
from tests.fixtures.databases import create_database
from tests.fixtures.least_privilege import POSTGRES_ROLES
from tests.fixtures.server_data import server_data_folder


@contextlib.contextmanager
def standing_alone() -> Iterator[Demonstration]:
    """The platform with servers of its own, until the block ends."""
    with contextlib.ExitStack() as opened:
        home = opened.enter_context(server_data_folder())
        server = embedded_servers.postgres(
            home / "pg",
            home,
            port=free_port(),
            password="of-the-demonstration",
            roles=POSTGRES_ROLES,
            options=("-c", "fsync=off"),
        )
        opened.enter_context(running(server.program))
        postgres = create_database(server.url, "demonstration")
        command.upgrade(alembic_config(postgres), "head")
        engine = db.connect(postgres)
        database_roles.grant_privileges(engine)
        engine.dispose()
        redis_url = opened.enter_context(running_valkey(home))
        yield opened.enter_context(demonstrated(home, postgres, redis_url))
