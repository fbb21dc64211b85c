"""Tenants' uploads against the real S3 server: what a presigned URL accepts and what it refuses."""

import base64
import hashlib
import time

import httpx
import pytest

from adapters.object_store.s3 import Bucket
from adapters.object_store.upload_store import UploadStore
from adapters.settings import StoreSettings

BODY = b"hello, tenants"
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def uploads(store) -> UploadStore:
    return UploadStore(store.bucket)


def presigned(uploads, key="uploads/rev_1/file", *, body=BODY, expires_s=60):
    return uploads.presign_put(key, size_bytes=len(body), sha256=hashlib.sha256(body).hexdigest(), expires_s=expires_s)


def put(upload, body=BODY, **changes) -> int:
    arguments = {"url": upload.url, "headers": upload.headers} | changes
    return httpx.put(arguments["url"], content=body, headers=arguments["headers"]).status_code


def test_a_presigned_upload_arrives_under_its_key(uploads, store, tmp_path):
    assert uploads.head("uploads/rev_1/file") is None
    assert put(presigned(uploads)) == 200
    assert uploads.head("uploads/rev_1/file") == len(BODY)
    assert store.download("uploads/rev_1/file", tmp_path / "x", bytes_max=100, sha256=SHA256) == len(BODY)
    assert (tmp_path / "x").read_bytes() == BODY


def test_a_presigned_upload_accepts_nothing_else(uploads):
    upload = presigned(uploads)
    other_checksum = {"x-amz-checksum-sha256": base64.b64encode(bytes(32)).decode()}
    assert put(upload, BODY + b"!") == 403, "more bytes"
    assert put(upload, BODY[:-1]) == 403, "fewer bytes"
    assert put(upload, headers={}) == 403, "no checksum"
    assert put(upload, headers=other_checksum) == 403, "another checksum"
    assert put(upload, url=upload.url.replace("/rev_1/", "/rev_2/")) == 403, "another key"
    assert put(upload, url=upload.url.split("?")[0]) in (400, 403), "no signature"
    assert uploads.head("uploads/rev_1/file") is None


def test_a_presigned_upload_expires(uploads):
    upload = presigned(uploads, expires_s=1)
    time.sleep(2.1)  # the server compares whole seconds of its clock, so the test has no event to wait for
    assert put(upload) in (400, 403)


def test_without_the_checksum_header_size_and_key_are_still_bound(bucket_settings, store):
    plain = bucket_settings.model_copy(update={"s3_checksum_header": False})
    uploads = UploadStore(Bucket(plain, StoreSettings()))
    upload = presigned(uploads)
    assert upload.headers == {}
    assert put(upload, BODY + b"!") == 403, "more bytes"
    assert put(upload, url=upload.url.replace("/rev_1/", "/rev_2/")) == 403, "another key"
    assert put(upload) == 200
