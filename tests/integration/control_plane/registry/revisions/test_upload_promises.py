"""Promises for an upload against any sender: replaced objects, repeated completion, odd names and decompression
bombs.
"""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from adapters.manifest import MANIFEST_FILE
from adapters.object_store.revision_store import revision_prefix
from control_plane.registry.revisions.refusal_audit import ACTION as REFUSED
from control_plane.settings import WebSettings
from core import redis_keys
from tests.conftest import wait_until
from tests.fixtures.control_plane.api import control_settings, running_api
from tests.fixtures.control_plane.worker import decided, put_all, running_worker
from tests.fixtures.uploads.peft_adapters import declared_files, tiny_base, write_adapter

ADAPTER = "router"
REVISIONS = f"/api/v1/adapters/{ADAPTER}/revisions"
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def tenant(api, base):
    tenant = api.tenant()
    tenant.adapter(ADAPTER, base)
    return tenant


@pytest.fixture
def folder(tmp_path, base) -> Path:
    return write_adapter(tmp_path / "adapter", base)


@pytest.fixture
def other_weights(tmp_path, base) -> bytes:
    """The weights of another valid adapter, with exactly the same size."""
    return (write_adapter(tmp_path / "other", base, seed=7) / WEIGHTS).read_bytes()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def actions(engine, revision_id: str) -> list[str]:
    with engine.connect() as connection:
        query = "SELECT action FROM audit_events WHERE target = %s ORDER BY created_at, id"
        return list(connection.exec_driver_sql(query, (revision_id,)).scalars())


def stored_bytes(store, digest: str) -> dict[str, bytes]:
    client, bucket = store.bucket.client, store.bucket.name
    listed = client.list_objects_v2(Bucket=bucket, Prefix=revision_prefix(digest))["Contents"]
    return {each["Key"]: client.get_object(Bucket=bucket, Key=each["Key"])["Body"].read() for each in listed}


def test_an_object_replaced_after_the_verdict_changes_nothing_that_is_served(
    tenant, settings, store, redis, engine, folder, other_weights
):
    revision = tenant.announce(ADAPTER, declared_files(folder))
    put_all(revision["uploads"], contents(folder))
    path = f"{REVISIONS}/{revision['id']}"
    with running_worker(settings):
        tenant.http.post(f"{path}/complete").raise_for_status()
        ready = decided(tenant, path)
        assert ready["status"] == "ready"
        field = f"{tenant.id}/{ADAPTER}"
        route = wait_until(lambda: redis.hget(redis_keys.snapshot("adapters"), field), what="route")
        before = stored_bytes(store, ready["sha256"])
        with engine.connect() as connection:
            query = "SELECT stored_bytes FROM stored_revisions WHERE revision_id = %s"  # what storage is charged by
            charged = connection.exec_driver_sql(query, (revision["id"],)).scalar_one()
        assert charged == sum(len(body) for key, body in before.items() if not key.endswith(MANIFEST_FILE))
        (upload,) = [each for each in revision["uploads"] if each["path"] == WEIGHTS]
        key = f"uploads/{revision['id']}/{WEIGHTS}"
        store.bucket.client.put_object(Bucket=store.bucket.name, Key=key, Body=other_weights)
        again = tenant.http.post(f"{path}/complete")
        assert (again.status_code, again.json()) == (202, ready)
        assert httpx.put(upload["url"], headers=upload["headers"], content=other_weights[:-1]).status_code >= 400
        done = actions(engine, revision["id"])
        assert done == ["revision.announced", "revision.completed", "revision.accepted"]
    assert tenant.http.get(path).json() == ready
    assert stored_bytes(store, ready["sha256"]) == before
    assert redis.hget(redis_keys.snapshot("adapters"), field) == route


def test_concurrent_completions_make_one_revision(tenant, settings, engine, folder):
    revision = tenant.announce(ADAPTER, declared_files(folder))
    put_all(revision["uploads"], contents(folder))
    path = f"{REVISIONS}/{revision['id']}"
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: tenant.http.post(f"{path}/complete"), range(8)))
    assert {answer.status_code for answer in answers} == {202}
    assert {answer.json()["id"] for answer in answers} == {revision["id"]}
    with running_worker(settings):
        ready = decided(tenant, path)
        replay = tenant.http.post(f"{path}/complete")
    assert (replay.status_code, replay.json()) == (202, ready)
    assert actions(engine, revision["id"]) == ["revision.announced", "revision.completed", "revision.accepted"]
    assert [each["id"] for each in tenant.http.get(REVISIONS).json()["data"]] == [revision["id"]]


NAMES = (
    "", "a/b", "../x", "..", "a\0b", "\u202ecba", "x" * 300, "\N{PILE OF POO}", "A", "a b", "a:canary", "a@rev_1", "-a",
    "a\n", "a.b", "é", "a%2fb",
)  # fmt: skip


def test_an_adapter_has_a_plain_name(shared_api):
    shared_api.register(tiny_base()).raise_for_status()
    tenant = shared_api.tenant()
    for name in NAMES:
        answer = tenant.http.post("/api/v1/adapters", json={"name": name, "base_model": tiny_base().id})
        assert (answer.status_code, answer.json()["param"]) == (400, "name"), answer.text
        assert "lower-case" in answer.json()["detail"]


def resident_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def test_a_compressed_body_is_not_unpacked(tenant):
    """The API runs in this process, so the growth of this process is the memory that the response took."""
    plain = json.dumps({"files": []}).encode()
    bomb = gzip.compress(plain[:-1] + b" " * 200_000_000 + b"}", compresslevel=1)
    assert 100_000 < len(bomb) < 1_000_000, "within the limit on bodies"
    before = resident_bytes()
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    named = tenant.http.post(REVISIONS, content=bomb, headers=headers)
    assert (named.status_code, named.json()["code"]) == (415, "encoding_not_allowed")
    unnamed = tenant.http.post(REVISIONS, content=bomb, headers={"content-type": "application/json"})
    assert (unnamed.status_code, unnamed.json()["code"]) == (400, "invalid_json")
    large = tenant.http.post(REVISIONS, content=b" " * 2_000_000, headers={"content-type": "application/json"})
    assert (large.status_code, large.json()["code"]) == (413, "request_too_large")
    assert resident_bytes() - before < 64 << 20
    assert tenant.http.get(REVISIONS).json()["data"] == []


def test_audit_rows_of_a_flood_of_refusals_are_bounded(postgres_settings, redis_settings, s3_settings, engine, folder):
    web = WebSettings(control_port=0, acknowledge_wait_ms=0, refusals_audited_per_hour_max=3)
    with running_api(control_settings(postgres_settings, redis_settings, s3_settings, web=web)) as api:
        api.register(tiny_base()).raise_for_status()
        flooding, quiet = api.tenant(), api.tenant()
        for tenant in (flooding, quiet):
            tenant.adapter(ADAPTER, tiny_base())
        files = [*declared_files(folder), {"path": "run.sh", "size_bytes": 1, "sha256": "0" * 64}]
        for tenant, times in ((flooding, 6), (quiet, 1)):
            answers = [tenant.http.post(REVISIONS, json={"files": files}) for _ in range(times)]
            assert {(each.status_code, each.json()["code"]) for each in answers} == {(400, "file_not_allowed")}
        absent = flooding.http.post("/api/v1/adapters/none/revisions", json={"files": files})
        assert absent.status_code == 404
    with engine.connect() as connection:
        query = "SELECT tenant_id, target, details FROM audit_events WHERE action = %s ORDER BY id"
        rows = [tuple(row) for row in connection.exec_driver_sql(query, (REFUSED,))]
    details = {"codes": ["file_not_allowed"], "param": "run.sh"}
    assert rows == [(flooding.id, ADAPTER, details)] * 3 + [(quiet.id, ADAPTER, details)]
