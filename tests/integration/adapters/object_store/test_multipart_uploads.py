"""Multipart uploads against the real S3 server: presigned, resumed, assembled and aborted."""

import os
import re
from datetime import timedelta
from urllib.parse import urlsplit

import httpx
import pytest

from adapters.object_store.multipart import parts_of
from adapters.object_store.s3 import Bucket
from adapters.object_store.upload_store import UploadStore
from adapters.settings import PART_BYTES_MIN, StoreSettings
from core import clock

KEY = "uploads/rev_1/adapter_model.safetensors"
BODY = os.urandom(2 * PART_BYTES_MIN + 1000)
PARTS = parts_of(len(BODY), PART_BYTES_MIN)


@pytest.fixture
def uploads(store) -> UploadStore:
    return UploadStore(store.bucket)


def send(uploads, upload_id, part, *, body=None, expires_s=60) -> int:
    signed = uploads.presign_part(KEY, upload_id, part, expires_s=expires_s)
    content = BODY[part.offset_bytes : part.offset_bytes + part.size_bytes] if body is None else body
    return httpx.request(signed.method, signed.url, headers=signed.headers, content=content).status_code


def test_parts_sent_in_any_order_become_one_object(uploads, store, tmp_path):
    upload_id = uploads.open_multipart(KEY)
    assert uploads.list_parts(KEY, upload_id) == {}
    for part in reversed(PARTS):
        assert uploads.complete_multipart(KEY, upload_id, PARTS)[-1] == part.number, "the check loses no part"
        assert send(uploads, upload_id, part) == 200
    assert uploads.head(KEY) is None
    assert uploads.complete_multipart(KEY, upload_id, PARTS) == []
    assert uploads.head(KEY) == len(BODY)
    store.download(KEY, tmp_path / "x", bytes_max=len(BODY))
    assert (tmp_path / "x").read_bytes() == BODY


def test_completing_is_idempotent_and_invalidates_the_urls(uploads):
    upload_id = uploads.open_multipart(KEY)
    assert [send(uploads, upload_id, part) for part in PARTS] == [200, 200, 200]
    for _ in range(2):
        assert uploads.complete_multipart(KEY, upload_id, PARTS) == []
    assert uploads.list_parts(KEY, upload_id) is None
    assert send(uploads, upload_id, PARTS[1], body=bytes(PART_BYTES_MIN)) == 404
    assert uploads.head(KEY) == len(BODY)


def test_a_parts_url_accepts_only_its_own_bytes_number_and_key(uploads):
    upload_id = uploads.open_multipart(KEY)
    assert send(uploads, upload_id, PARTS[2], body=bytes(1001)) == 403, "more bytes"
    assert send(uploads, upload_id, PARTS[2], body=bytes(999)) == 403, "fewer bytes"
    signed = uploads.presign_part(KEY, upload_id, PARTS[2], expires_s=60)
    for old, new in (("partNumber=3", "partNumber=1"), ("/rev_1/", "/rev_2/"), (upload_id, upload_id[::-1])):
        assert httpx.put(signed.url.replace(old, new), content=bytes(1000)).status_code == 403, (old, new)
    assert uploads.list_parts(KEY, upload_id) == {}


def test_an_aborted_upload_is_closed_and_aborting_again_is_no_error(uploads):
    upload_id = uploads.open_multipart(KEY)
    send(uploads, upload_id, PARTS[2])
    for _ in range(2):
        uploads.abort_multipart(KEY, upload_id)
    assert uploads.list_parts(KEY, upload_id) is None
    assert send(uploads, upload_id, PARTS[2]) == 404


def test_removing_a_revision_aborts_its_open_uploads_only(uploads):
    mine, theirs = uploads.open_multipart(KEY), uploads.open_multipart("uploads/rev_10/file")
    assert uploads.remove("rev_1") == 0
    assert uploads.list_parts(KEY, mine) is None
    assert uploads.list_parts("uploads/rev_10/file", theirs) == {}


def test_a_bucket_without_multipart_uploads_has_none_to_abort(uploads):
    assert uploads.abort_abandoned(clock.now(), limit=10) == 0
    assert uploads.remove("rev_1") == 0


def test_only_old_uploads_are_aborted_in_bounded_batches(uploads):
    ids = [uploads.open_multipart(f"uploads/rev_{number}/file") for number in range(3)]
    now = clock.now()
    assert uploads.abort_abandoned(now - timedelta(hours=1), limit=10) == 0
    assert uploads.abort_abandoned(now + timedelta(hours=1), limit=2) == 2
    assert uploads.abort_abandoned(now + timedelta(hours=1), limit=2) == 1
    assert [uploads.list_parts(f"uploads/rev_{number}/file", each) for number, each in enumerate(ids)] == [None] * 3


def test_urls_carry_the_public_endpoint_and_calls_use_the_internal_one(bucket_settings, store):
    public = bucket_settings.model_copy(update={"s3_public_endpoint": "https://uploads.example.com"})
    uploads = UploadStore(Bucket(public, StoreSettings()))
    upload_id = uploads.open_multipart(KEY)
    assert uploads.list_parts(KEY, upload_id) == {}
    for url in (
        uploads.presign_put(KEY, size_bytes=1, sha256="0" * 64, expires_s=60).url,
        uploads.presign_part(KEY, upload_id, PARTS[0], expires_s=60).url,
    ):
        assert urlsplit(url)[:3] == ("https", "uploads.example.com", f"/{store.bucket.name}/{KEY}")
        assert re.search(r"X-Amz-SignedHeaders=content-length%3Bhost", url)
