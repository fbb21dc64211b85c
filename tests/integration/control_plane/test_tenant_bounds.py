"""What one tenant may write and ask for is bounded, and leaves the API to all others."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from control_plane.settings import WebSettings
from core.settings import PostgresSettings
from tests.conftest import wait_until
from tests.fixtures.control_plane.api import control_settings, running_api

REPORTS_AT_ONCE = 2


@pytest.fixture
def api(postgres_settings, redis_settings, s3_settings):
    postgres = PostgresSettings(postgres_dsn=postgres_settings.postgres_dsn, postgres_pool_max=5)
    web = WebSettings(
        control_port=0, acknowledge_wait_ms=0, api_keys_max=4, control_report_connections_max=REPORTS_AT_ONCE
    )
    with running_api(control_settings(postgres, redis_settings, s3_settings, web=web)) as running:
        yield running


def test_a_tenant_has_a_bounded_number_of_live_keys(api):
    tenant = api.tenant()
    with ThreadPoolExecutor(8) as callers:
        made = list(callers.map(lambda _: tenant.http.post("/api/v1/api-keys", json={}), range(12)))
    assert sorted(answer.status_code for answer in made) == [201] * 3 + [403] * 9
    refusal = next(answer for answer in made if answer.status_code == 403).json()
    assert refusal["code"] == "api_key_quota_exceeded"
    assert "at most 4" in refusal["detail"]
    path = f"/api/v1/admin/tenants/{tenant.id}/api-keys"
    assert api.admin.post(path, json={}).json()["code"] == "api_key_quota_exceeded"

    key_id = next(answer for answer in made if answer.status_code == 201).json()["id"]
    tenant.http.delete(f"/api/v1/api-keys/{key_id}").raise_for_status()
    assert api.admin.post(path, json={}).status_code == 201


def test_reports_that_wait_leave_connections_to_all_other_requests(api, engine):
    tenant, other = api.tenant(), api.tenant()
    with engine.connect() as lock, ThreadPoolExecutor(12) as callers:
        lock.exec_driver_sql("LOCK TABLE usage_records IN ACCESS EXCLUSIVE MODE")
        reports = [callers.submit(tenant.http.get, "/api/v1/usage") for _ in range(12)]
        wait_until(lambda: _waiting(engine) == REPORTS_AT_ONCE, what="the reports that may run to wait for the lock")
        assert other.http.get("/api/v1/api-keys").status_code == 200
        assert api.admin.get("/api/v1/admin/plans").status_code == 200
        assert sum(report.done() for report in reports) <= REPORTS_AT_ONCE, "they were answered after the reports"
        lock.rollback()
        ended = {report.result().status_code for report in reports}
    assert ended <= {httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE}  # a busy machine may take longer than the lock


def _waiting(engine) -> int:
    with engine.connect() as connection:
        counted = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return connection.exec_driver_sql(counted).scalar_one()
