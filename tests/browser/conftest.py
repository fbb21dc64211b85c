"""A browser, and a platform to look at, for all tests of this folder."""

import pytest

from control_plane.console.pages import PAGES, PLAYGROUND
from tests.browser.chromium import chromium
from tests.browser.demonstration import demonstrated
from tests.fixtures.databases import temporary_database

TENANT_PATHS = (
    *(page.path for page in PAGES if not page.is_admin), PLAYGROUND.path, "/account",
    "/usage?group_by=adapter&bucket=1d", "/adapters/faq/revisions/{rejected}", "/requests?model=unknown",
    "/search?q=route",
)  # fmt: skip
ADMIN_PATHS = tuple(page.path for page in PAGES if page.is_admin)


@pytest.fixture(scope="session")
def platform(postgres_server, migrated_template, redis_server, tmp_path_factory):
    home = tmp_path_factory.mktemp("demonstration")
    with (
        temporary_database(postgres_server, migrated_template) as postgres,
        demonstrated(home, postgres, redis_server) as found,
    ):
        yield found


@pytest.fixture(scope="session")
def browser():
    with chromium() as started:
        yield started
