"""Measures the console's pages with 1,000 tenants, 1,000 adapters of one of them and 1,000,000 records.

Run: ``python -m benchmarks.console``. A real Postgres, Valkey and S3 of their own, one person of the tenant and one of
the platform, who open each page again and again. Prints the 95th percentile of each page with its goal; exits with
status 1 where a page misses it.
"""

import json
import logging
import tempfile
import time
from pathlib import Path
from typing import Final

import click
import sqlalchemy as sa
import structlog
from pydantic import SecretStr

from benchmarks.billing.__main__ import database, server
from benchmarks.billing.seed import seed
from benchmarks.goals import judged, report
from benchmarks.load import quantile
from control_plane import database_roles
from control_plane.console.console_page import ConsolePage
from control_plane.console.pages import PAGES
from control_plane.settings import WebSettings
from core.settings import RedisSettings, S3Settings
from tenora.stack import embedded_servers
from tenora.stack.program import free_port
from tests.conftest import running, running_valkey
from tests.fixtures.control_plane.api import Api, Tenant, control_settings, running_api
from tests.fixtures.control_plane.browser import Browser, admin, join

TENANTS: Final = 1_000
ADAPTERS: Final = 1_000
GOAL_MS: Final = 50.0
ADMIN_GOAL_MS: Final = 100.0
_S3: Final = "key-of-the-benchmark"
_TENANT_ROWS: Final = """
INSERT INTO tenants (id, name, plan_id, status, limit_overrides, created_at)
SELECT 'tn_many_' || n, 'Tenant ' || n, :plan, 'active', '{}', now() FROM generate_series(0, :last) n
"""
_ADAPTER_ROWS: Final = """
INSERT INTO adapters (id, tenant_id, name, base_model, pinned, created_at)
SELECT 'ad_' || lpad(n::text, 26, '0'), 'tn_many_0', 'adapter-' || n, :base, false, now()
FROM generate_series(1, :last) n
"""


def fill(engine: sa.Engine, api: Api, records: int) -> Tenant:
    """The tenants, the adapters of the first one, and all records. Returns the first tenant."""
    plan, base = api.plan("console"), _base(api)
    seed(engine, prefix="tn_many_", tenants=TENANTS, records=records, first=0)
    with engine.begin() as connection:
        connection.execute(sa.text(_TENANT_ROWS), {"plan": plan["id"], "last": TENANTS - 1})
        connection.execute(sa.text(_ADAPTER_ROWS), {"base": base, "last": ADAPTERS})
    key = api.admin.post("/api/v1/admin/tenants/tn_many_0/api-keys", json={}).raise_for_status().json()
    return Tenant(id="tn_many_0", plan="console", key=key["key"], key_id=key["id"], http=api.client(key["key"]))


def _base(api: Api) -> str:
    from tests.fixtures.uploads.peft_adapters import tiny_base

    spec = tiny_base()
    api.register(spec).raise_for_status()
    return str(spec.id)


def p95_ms(browser: Browser, page: ConsolePage, tries: int) -> float:
    """The 95th percentile of opening a page, in milliseconds, after it was opened once."""
    browser.open(page.path).raise_for_status()
    took = []
    for _ in range(tries):
        begun = time.monotonic()
        browser.open(page.path).raise_for_status()
        took.append((time.monotonic() - begun) * 1000)
    return quantile(took, 0.95)


@click.command()
@click.option("--records", default=1_000_000, show_default=True, help="Seeded records, over 1,000 tenants.")
@click.option("--tries", default=40, show_default=True, help="How often each page is opened.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(records: int, tries: int, out: Path | None) -> None:
    """Measure the pages and print each with its goal."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with (
        tempfile.TemporaryDirectory() as name,
        server(Path(name)) as server_url,
        database(server_url, "console") as (engine, postgres),
        running_valkey(Path(name)) as redis_url,
    ):
        database_roles.grant_privileges(engine)
        folder = Path(name)
        s3 = embedded_servers.s3(
            folder / "s3", folder, port=free_port(), access_key=_S3, secret_key=_S3, bucket="tenora"
        )
        with running(s3.program):
            stored = S3Settings(s3_endpoint=s3.url, s3_access_key=_S3, s3_secret_key=SecretStr(_S3))
            web = WebSettings(control_port=0, acknowledge_wait_ms=0, control_tenant_requests_per_minute=1_000_000)
            settings = control_settings(postgres, RedisSettings(redis_url=redis_url), stored, web=web)
            with running_api(settings) as api:
                tenant = fill(engine, api, records)
                owner, operator = join(api, tenant, "owner").browser, admin(api).browser
                pages = [page for page in PAGES if "{" not in page.path]
                seen = [p95_ms(operator if page.is_admin else owner, page, tries) for page in pages]
    goals = {f"p95 of {page.path}, ms": ("<=", ADMIN_GOAL_MS if page.is_admin else GOAL_MS) for page in pages}
    rows = judged(goals, seen)
    if out is not None:
        out.write_text(json.dumps(rows, indent=2) + "\n")
    report(rows)


if __name__ == "__main__":
    main()
