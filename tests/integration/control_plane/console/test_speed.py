"""How many queries a page costs. They grow with what a page shows, and never with what a tenant has."""

import sqlalchemy as sa

from control_plane.console.pages import PAGES
from tests.fixtures.control_plane.browser import path_of

QUERIES_MAX = 12
COSTLIER = {
    "/": 22, "/adapters": 16, "/limits": 16, "/batches": 40, "/billing": 60, "/admin": 45, "/admin/tenants": 26,
    "/admin/tenants/{tenant_id}": 34,
}  # fmt: skip
"""Pages of several reports. A next invoice is computed of all terms that may count for it; a list of batches asks twice
for each batch that has not ended.
"""


def test_a_page_costs_few_queries(people, operator, ids):
    counted: list[str] = []

    def count(_connection, _cursor, statement, *_):
        if not statement.startswith(("BEGIN", "COMMIT", "SET")):
            counted.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", count)
    try:
        costs = {}
        for page in PAGES:
            browser = operator.browser if page.is_admin else people["owner"].browser
            browser.open(path_of(page, ids))
            counted.clear()
            browser.open(path_of(page, ids))
            costs[page.path] = len(counted)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", count)
    assert {path: cost for path, cost in costs.items() if cost > COSTLIER.get(path, QUERIES_MAX)} == {}
