"""Large uploads through the API: in parts, in parallel, resumed after an interruption, and limited to the tenant."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest

from adapters.object_store.upload_store import upload_key
from adapters.settings import PART_BYTES_MIN, StoreSettings
from tests.fixtures.control_plane.api import running_api
from tests.fixtures.uploads.large_uploads import settings_in_parts, tenant_of_large_uploads

CONTENT = {
    "adapter_config.json": b"{}",
    "adapter_model.safetensors": os.urandom(2 * PART_BYTES_MIN + 1000),
}
WEIGHTS = "adapter_model.safetensors"
FILES = [
    {"path": path, "size_bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    for path, body in CONTENT.items()
]


@pytest.fixture
def settings(postgres_settings, redis_settings, s3_settings):
    return settings_in_parts(postgres_settings, redis_settings, s3_settings)


@pytest.fixture
def tenant(api, base):
    return tenant_of_large_uploads(api, base)


def path_of(revision: dict, rest: str = "") -> str:
    return f"/api/v1/adapters/router/revisions/{revision['id']}{rest}"


def slices(uploads: list[dict]) -> list[tuple[str, int | None, str, dict, bytes]]:
    """Every requested PUT: file, part, URL, headers and bytes."""
    puts = []
    for upload in uploads:
        body = CONTENT[upload["path"]]
        if upload["url"] is not None:
            assert upload["parts"] == []
            puts.append((upload["path"], None, upload["url"], upload["headers"], body))
        for part in upload["parts"]:
            piece = body[part["offset_bytes"] : part["offset_bytes"] + part["size_bytes"]]
            puts.append((upload["path"], part["number"], part["url"], part["headers"], piece))
    return puts


def send(puts) -> None:
    for _, _, url, headers, body in puts:
        httpx.put(url, headers=headers, content=body).raise_for_status()


def missing(tenant, revision) -> list[tuple[str, int | None]]:
    answer = tenant.http.get(path_of(revision, "/uploads")).raise_for_status().json()
    assert (answer["id"], answer["status"]) == (revision["id"], "uploading")
    return [(path, number) for path, number, *_ in slices(answer["uploads"])]


def test_an_upload_in_parts_resumes_where_it_stopped_and_becomes_one_object(tenant, uploads):
    revision = tenant.announce("router", FILES)
    puts = slices(revision["uploads"])
    assert [(path, number) for path, number, *_ in puts] == [
        ("adapter_config.json", None), (WEIGHTS, 1), (WEIGHTS, 2), (WEIGHTS, 3),
    ]  # fmt: skip
    send([puts[0], puts[1], puts[3]])
    refused = tenant.http.post(path_of(revision, "/complete"))
    assert (refused.status_code, refused.json()["code"], refused.json()["param"]) == (409, "artifact_missing", WEIGHTS)
    assert "of its 3 parts, 1 were not uploaded (2)" in refused.json()["detail"]
    assert missing(tenant, revision) == [(WEIGHTS, 2)]
    send(slices(tenant.http.get(path_of(revision, "/uploads")).json()["uploads"]))
    assert missing(tenant, revision) == []
    assert tenant.http.post(path_of(revision, "/complete")).status_code == 202
    key = upload_key(revision["id"], WEIGHTS)
    stored = uploads.bucket.client.get_object(Bucket=uploads.bucket.name, Key=key)["Body"].read()
    assert stored == CONTENT[WEIGHTS]
    after = tenant.http.get(path_of(revision, "/uploads")).json()
    assert (after["status"], after["uploads"]) == ("validating", [])


def test_an_upload_lost_by_the_store_restarts(tenant, uploads):
    revision = tenant.announce("router", FILES)
    send(slices(revision["uploads"])[:3])
    key = upload_key(revision["id"], WEIGHTS)
    (open_now,) = uploads.bucket.client.list_multipart_uploads(Bucket=uploads.bucket.name, Prefix=key)["Uploads"]
    uploads.abort_multipart(key, open_now["UploadId"])
    refused = tenant.http.post(path_of(revision, "/complete"))
    assert (refused.status_code, refused.json()["code"]) == (409, "artifact_missing")
    again = tenant.http.get(path_of(revision, "/uploads")).json()["uploads"]
    assert [(path, number) for path, number, *_ in slices(again)] == [(WEIGHTS, 1), (WEIGHTS, 2), (WEIGHTS, 3)]
    send(slices(again))
    assert tenant.http.post(path_of(revision, "/complete")).status_code == 202


def test_a_replayed_announcement_continues_the_same_multipart_upload(tenant):
    headers = {"idempotency-key": "k"}
    first, again = (
        tenant.http.post("/api/v1/adapters/router/revisions", json={"files": FILES}, headers=headers).json()
        for _ in range(2)
    )
    assert first["id"] == again["id"]
    puts = slices(first["uploads"])
    send(puts[:2])
    send(slices(again["uploads"])[2:])
    assert missing(tenant, first) == []


def test_concurrent_resumes_share_one_multipart_upload(tenant, uploads, engine):
    revision = tenant.announce("router", FILES)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE upload_files SET s3_upload_id = NULL")
    key = upload_key(revision["id"], WEIGHTS)
    uploads.remove(revision["id"])
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: tenant.http.get(path_of(revision, "/uploads")).json(), range(6)))
    ids = {httpx.URL(put[2]).params["uploadId"] for answer in answers for put in slices(answer["uploads"]) if put[1]}
    opened = uploads.bucket.client.list_multipart_uploads(Bucket=uploads.bucket.name, Prefix=key)["Uploads"]
    assert ids == {each["UploadId"] for each in opened}
    assert len(ids) == 1


def test_an_announcement_made_while_the_store_was_down_is_completed_by_a_retry(settings, tenant):
    body, headers = {"files": FILES}, {"idempotency-key": "k", "authorization": f"Bearer {tenant.key}"}
    nowhere = replace(
        settings,
        s3=settings.s3.model_copy(update={"s3_endpoint": "http://127.0.0.1:9"}),
        store=StoreSettings(store_attempts_max=1, store_connect_timeout_s=1),
    )
    with running_api(nowhere) as cut_off:
        refused = cut_off.anyone.post("/api/v1/adapters/router/revisions", json=body, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
    again = tenant.http.post("/api/v1/adapters/router/revisions", json=body, headers=headers)
    assert again.status_code == 201
    assert len(slices(again.json()["uploads"])) == 4
    assert len(tenant.http.get("/api/v1/adapters/router/revisions").json()["data"]) == 1


def test_an_expired_upload_gets_no_urls(tenant, engine):
    revision = tenant.announce("router", FILES)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE revisions SET created_at = created_at - interval '2 hours'")
    refused = tenant.http.get(path_of(revision, "/uploads"))
    assert (refused.status_code, refused.json()["code"]) == (409, "upload_urls_expired")
