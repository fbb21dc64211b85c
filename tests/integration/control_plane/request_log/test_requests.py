"""What a tenant and an admin see of the request log, by ClickHouse's engine over files in S3."""

from datetime import UTC, datetime, timedelta

import pytest

from control_plane.request_log.query_engine import ClickHouseServer, EmbeddedClickHouse
from control_plane.request_log.service import RequestFilter, RequestLogReader, quoted
from control_plane.request_log.writer import RequestLogWriter
from control_plane.settings import RequestLogSettings
from core import clock
from core.contracts.request_log import LoggedRequest
from core.errors import NotFound
from core.ids import new_id
from tests.fixtures.control_plane.logged_requests import append, append_refusals, served


@pytest.fixture(scope="module")
def clickhouse() -> EmbeddedClickHouse:
    return EmbeddedClickHouse()


@pytest.fixture
def reader(bucket, s3_settings, clickhouse) -> RequestLogReader:
    return RequestLogReader(bucket, s3_settings, clickhouse, RequestLogSettings())


@pytest.fixture
def store(redis, bucket):
    """Writes what waits, a file for each entry."""
    one = RequestLogWriter(redis, bucket, entries_max=1)

    def run() -> None:
        while one.run_once():
            pass

    return run


def ids(page) -> list[str]:
    return [row.request_id for row in page.data]


def test_a_row_says_why_a_request_was_slow(redis, store, reader):
    event, details = served()
    append(redis, (event, details))
    store()
    row = reader.one("tn_a", event.request_id)
    assert row == LoggedRequest(
        request_id=event.request_id, time=clock.from_ms(event.settled_at_ms - 1000), outcome="done", tenant_id="tn_a",
        key_id="key_a", model="bot", base_model="base", adapter_id="ad_a", revision_id="rev_a", pool="main",
        replica_id="rep_one", service_tier="default", service_class="interactive", adapter_tier="store",
        prompt_tokens=10, cached_tokens=0, completion_tokens=5, wait_ms=40, load_ms=200, prefill_ms=60, ttft_ms=300,
        itl_p95_ms=9,
        whole_ms=1000, finish_reason="stop", price_nanos=7,
    )  # fmt: skip


def test_a_tenant_sees_no_request_of_another(redis, store, reader):
    [mine], [theirs] = append(redis, served("tn_a")), append(redis, served("tn_b"))
    store()
    assert ids(reader.page("tn_a", RequestFilter(), cursor=None, limit=10)) == [mine]
    with pytest.raises(NotFound):
        reader.one("tn_a", theirs)
    assert reader.page("tn_a' OR '1'='1", RequestFilter(), cursor=None, limit=10).data == []


def test_pages_follow_each_other_in_both_orders(redis, store, reader):
    durations = [50, 900, 900, 10, 300]
    made = append(redis, *(served(duration_ms=each) for each in durations))
    store()
    slowest = sorted(zip(durations, made, strict=True), reverse=True)
    for sort, wanted in (("newest", sorted(made, reverse=True)), ("slowest", [each for _, each in slowest])):
        seen, cursor = [], None
        while True:
            page = reader.page("tn_a", RequestFilter(sort=sort), cursor=cursor, limit=2)
            seen += ids(page)
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == wanted


def test_filters_select_by_time_model_outcome_code_and_duration(redis, store, reader):
    now_ms = clock.now_ms()
    old, other, late, slow = append(
        redis,
        served(settled_at_ms=now_ms - 7_200_000),
        served(model="other"),
        served(outcome="timeout", code="generation_timeout"),
        served(duration_ms=60_000),
    )
    store()

    def found(**wanted: object) -> list[str]:
        return ids(reader.page("tn_a", RequestFilter(**wanted), cursor=None, limit=10))

    assert found(end=clock.now() - timedelta(hours=1)) == [old]
    assert len(found(start=datetime(2000, 1, 1, tzinfo=UTC), end=datetime(8999, 1, 1, tzinfo=UTC))) == 4
    assert set(found(start=clock.now() - timedelta(hours=1))) == {other, late, slow}
    assert found(model="other") == [other]
    assert found(outcome="timeout") == found(code="generation_timeout") == [late]
    assert found(whole_ms_min=60_000) == [slow]


def test_a_request_that_redis_logged_twice_is_shown_once_and_an_exact_row_before_its_estimate(redis, store, reader):
    exact = served(request_id=new_id("req"))
    estimate = served(request_id=exact[0].request_id, estimated=True, outcome="gateway_gone", duration_ms=400)
    append(redis, estimate, exact, exact)
    store()
    [row] = reader.page("tn_a", RequestFilter(), cursor=None, limit=10).data
    assert (row.outcome, row.estimated) == ("done", False)
    assert reader.one("tn_a", exact[0].request_id) == row
    assert ids(reader.page("tn_a", RequestFilter(sort="slowest"), cursor=None, limit=10)) == [row.request_id]


def test_files_that_a_merge_replaces_during_a_query_are_listed_again(redis, store, reader, bucket, monkeypatch):
    [wanted] = append(redis, served())
    store()
    [file] = reader._files(clock.now() - timedelta(hours=1), clock.now())
    moved, run = file._replace(level=1), reader._engine.run

    def merge_first(sql: str) -> bytes:
        if bucket.head(moved.key) is None:
            bucket.put(moved.key, bucket.get(file.key))
            bucket.delete([file.key])
        return run(sql)

    monkeypatch.setattr(reader, "_engine", type("Merging", (), {"run": staticmethod(merge_first)}))
    assert reader.one("tn_a", wanted).request_id == wanted


def test_a_text_stays_a_text_in_sql(clickhouse):
    odd = "a'b\\c\\'; DROP TABLE x --\n"
    assert clickhouse.run(f"SELECT hex({quoted(odd)}) FORMAT TSVRaw").strip().decode() == odd.encode().hex().upper()


def test_a_server_by_url_gets_the_same_statement(redis, store, reader, monkeypatch):
    """The server is this process's engine behind an HTTP call."""
    [wanted] = append(redis, served())
    store()
    server = ClickHouseServer("http://clickhouse.example:8123", timeout_s=5)
    sent: list[str] = []

    class Answer:
        status_code = 200

        def __init__(self, statement: bytes) -> None:
            sent.append(statement.decode())
            self.content = reader_engine.run(sent[-1])

    reader_engine = reader._engine
    monkeypatch.setattr(server._client, "post", lambda _url, content: Answer(content))
    monkeypatch.setattr(reader, "_engine", server)
    assert reader.one("tn_a", wanted).request_id == wanted
    assert [each.rsplit(maxsplit=1)[1] for each in sent] == ["TSVRaw", "JSONEachRow"]


def test_the_api_shows_a_tenant_its_own_requests_and_an_admin_those_of_a_tenant(api, redis, store):
    mine, other = api.tenant(), api.tenant()
    refusal = LoggedRequest(
        request_id=new_id("req"), time=clock.now(), outcome="refused", tenant_id=mine.id, code="overloaded", count=3
    )
    append_refusals(redis, refusal)
    [request_id] = append(redis, served(mine.id))
    store()
    listed = mine.http.get("/api/v1/requests").raise_for_status().json()["data"]
    assert [(each["request_id"], each["count"]) for each in listed] == [(request_id, 1), (refusal.request_id, 3)]
    one = mine.http.get(f"/api/v1/requests/{request_id}").raise_for_status().json()
    assert (one["load_ms"], one["wait_ms"], one["prefill_ms"]) == (200, 40, 60)
    assert other.http.get("/api/v1/requests").json()["data"] == []
    assert other.http.get(f"/api/v1/requests/{request_id}").json()["code"] == "request_not_found"
    of_tenant = f"/api/v1/admin/tenants/{mine.id}/requests"
    assert api.admin.get(of_tenant).raise_for_status().json()["data"] == listed
    assert api.admin.get(f"{of_tenant}/{request_id}").raise_for_status().json() == one
    assert api.admin.get(f"/api/v1/admin/tenants/{new_id('tn')}/requests").status_code == 404


def test_a_cursor_of_another_order_and_an_empty_range_are_refused(api):
    http = api.tenant().http
    assert http.get("/api/v1/requests", params={"start": "2026-11-27T00:00:00"}).json()["code"] == "invalid_value"
    span = {"start": "2026-11-27T00:00:00Z", "end": "2026-11-27T00:00:00Z"}
    assert "before end" in http.get("/api/v1/requests", params=span).json()["detail"]
    odd = {"cursor": "YWZ0ZXI6eA", "sort": "slowest"}  # "after:x"
    assert http.get("/api/v1/requests", params=odd).json()["code"] == "invalid_cursor"


def test_an_erasure_is_audited_and_left_to_the_worker(api, bucket):
    tenant = api.tenant()
    assert api.admin.delete(f"/api/v1/admin/tenants/{tenant.id}/requests").status_code == 204
    assert [each.key for each in bucket.objects("requests/erase/")] == [f"requests/erase/{tenant.id}"]
    events = api.admin.get("/api/v1/admin/audit-events", params={"tenant_id": tenant.id}).json()["data"]
    assert events[0]["action"] == "request_log.erased"
