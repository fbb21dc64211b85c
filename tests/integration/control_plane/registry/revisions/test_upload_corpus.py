"""Bad uploads of every kind through the real API, S3 and worker: refused and audited, without other effects. The
child's verdict on each item is tested beside the child.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
import pytest
import redis as redis_client
import sqlalchemy as sa

from adapters.object_store.s3 import Bucket
from adapters.settings import StoreSettings
from control_plane.registry.revisions.refusal_audit import ACTION as REFUSED
from control_plane.settings import WebSettings
from core import db, redis_keys
from core.settings import RedisSettings
from tests.conftest import wait_until
from tests.corpus.uploads.corpus import BY_WAY
from tests.corpus.uploads.item import BASE, PLAN, Item
from tests.fixtures.control_plane.api import Api, Tenant, control_settings, running_api
from tests.fixtures.control_plane.worker import put_all, running_worker
from tests.fixtures.uploads.peft_adapters import tiny_base

ADAPTER = "corpus"
OTHER = tiny_base(id="other-7b", hub_name="someone/Other-7B")
VERDICTS_S = 120
pytestmark = pytest.mark.timeout(VERDICTS_S + 100)  # the first test waits for all verdicts


@dataclass
class Outcome:
    """The API's responses to one item, call by call, and the final state of its revision."""

    answers: list[httpx.Response] = field(default_factory=list)
    revision_id: str | None = None
    revision: dict = field(default_factory=dict)
    audit: list[tuple[str, dict]] = field(default_factory=list)


@dataclass
class Run:
    """The processed corpus, and the API that processed it."""

    outcomes: dict[str, Outcome]
    engine: sa.Engine
    redis: redis_client.Redis
    new_objects: set[str]


@pytest.fixture(scope="module")
def run(module_postgres_settings, redis_server, s3_settings) -> Iterator[Run]:
    postgres = module_postgres_settings
    web = WebSettings(control_port=0, acknowledge_wait_ms=0, uploads_open_max=1000, revisions_max=1000)
    settings = control_settings(postgres, RedisSettings(redis_url=redis_server), s3_settings, web=web)
    engine, bucket = db.connect(postgres), Bucket(s3_settings, StoreSettings())
    with redis_client.Redis.from_url(redis_server) as redis, running_api(settings) as api:
        redis.flushall()
        before = stored(bucket)
        tenant = announcing_tenant(api)
        slots = {"TENORA_VALIDATION_SLOTS": "2", "TENORA_CANARY_REQUIRED": "true"}
        with ThreadPoolExecutor(4) as pool, running_worker(settings, **slots):
            outcomes = dict(zip(BY_WAY, pool.map(lambda item: send(tenant, item), BY_WAY.values()), strict=True))
            wait_until(lambda: open_revisions(engine) == 0, timeout_s=VERDICTS_S, what="every verdict")
        for outcome in outcomes.values():
            read_back(tenant, engine, outcome)
        yield Run(outcomes, engine, redis, stored(bucket) - before)
    engine.dispose()


def stored(bucket: Bucket) -> set[str]:
    """Every object that a replica could read."""
    pages = bucket.client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name, Prefix="adapters/")
    return {each["Key"] for page in pages for each in page.get("Contents", [])}


def announcing_tenant(api: Api) -> Tenant:
    for spec in (BASE, OTHER):
        api.register(spec).raise_for_status()
    tenant = api.tenant(**PLAN)
    tenant.adapter(ADAPTER, BASE)
    return tenant


def send(tenant: Tenant, item: Item) -> Outcome:
    """Announce, upload and complete, as far as the API allows it."""
    outcome, path = Outcome(), f"/api/v1/adapters/{ADAPTER}/revisions"

    def post(where: str, **body: object) -> httpx.Response:
        outcome.answers.append(tenant.http.post(where, **body))
        return outcome.answers[-1]

    announced = post(path, json={"files": item.announcement()})
    if announced.status_code != 201:
        return outcome
    outcome.revision_id = announced.json()["id"]
    uploads = [upload for upload in announced.json()["uploads"] if upload["path"] not in item.withheld]
    put_all(uploads, item.content())
    post(f"{path}/{outcome.revision_id}/complete")
    return outcome


def open_revisions(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return connection.exec_driver_sql("SELECT count(*) FROM revisions WHERE status = 'validating'").scalar_one()


def read_back(tenant: Tenant, engine: sa.Engine, outcome: Outcome) -> None:
    if outcome.revision_id is None:
        return
    answer = tenant.http.get(f"/api/v1/adapters/{ADAPTER}/revisions/{outcome.revision_id}")
    outcome.answers.append(answer)
    outcome.revision = answer.json()
    with engine.connect() as connection:
        query = "SELECT action, details FROM audit_events WHERE target = %s ORDER BY created_at"
        outcome.audit = [tuple(row) for row in connection.exec_driver_sql(query, (outcome.revision_id,))]


@pytest.mark.parametrize("name", BY_WAY)
def test_a_bad_upload_is_refused_with_its_code_and_audited(run, name):
    item, outcome = BY_WAY[name], run.outcomes[name]
    statuses = [answer.status_code for answer in outcome.answers]
    assert max(statuses) < 500, [answer.text for answer in outcome.answers]
    actions = [action for action, _ in outcome.audit]
    match item.stage:
        case "announce":
            assert statuses == [item.status]
            problem = outcome.answers[0].json()
            assert (problem["code"], problem["param"]) == (item.code, item.file or "files")
            assert [words for words in item.says if words not in problem["detail"]] == [], problem
        case "complete":
            assert statuses == [201, item.status, 200]
            problem = outcome.answers[1].json()
            assert (problem["code"], problem["param"]) == (item.code, item.file)
            assert [words for words in item.says if words not in problem["detail"]] == [], problem
            assert outcome.revision["status"] == "uploading"
            assert actions == ["revision.announced"]
        case "validation":
            assert statuses == [201, 202, 200]
            assert (outcome.revision["status"], outcome.revision["sha256"]) == ("rejected", None)
            problems = outcome.revision["report"]["problems"]
            found = [each for each in problems if (each["code"], each["file"]) == (item.code, item.file)]
            assert any(all(words in each["message"] for words in item.says) for each in found), problems
            assert item.where in (None, *(each["where"] for each in found)), problems
            assert actions == ["revision.announced", "revision.completed", "revision.rejected"]
            assert item.code in outcome.audit[-1][1]["codes"]


def test_an_immediate_refusal_is_audited_with_its_reason(run):
    with run.engine.connect() as connection:
        query = "SELECT details ->> 'param', details -> 'codes' ->> 0 FROM audit_events WHERE action = %s"
        noted = [tuple(row) for row in connection.exec_driver_sql(query, (REFUSED,))]
    refused = [item for item in BY_WAY.values() if item.stage == "announce"]
    assert sorted(noted) == sorted((item.file or "files", item.code) for item in refused)
    assert len(noted) > 40


def test_nothing_is_billed_published_stored_or_run(run):
    """Without a route no gateway can send it to an engine, and without a canary job no worker will."""
    with run.engine.connect() as connection:
        for table in ("usage_records", "transfers", "entries", "invoices"):
            assert connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one() == 0, table
        query = "SELECT count(*) FROM revisions WHERE digest IS NOT NULL OR checked_digest IS NOT NULL"
        assert connection.exec_driver_sql(query).scalar_one() == 0
        query = "SELECT count(*) FROM outbox WHERE kind IN ('adapters', 'pins')"
        routed = connection.exec_driver_sql(query).scalar_one()
    assert routed == 0
    assert run.redis.hgetall(redis_keys.snapshot("adapters")) == {}
    assert run.redis.keys(redis_keys.canary_jobs(BASE.id, 0).replace(":0:", ":*:")) == []
    assert run.redis.exists(redis_keys.USAGE_STREAM, redis_keys.CANARY_RESULTS) == 0
    assert run.new_objects == set()
