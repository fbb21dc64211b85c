"""The store against the real S3 server."""

import base64
import hashlib
import time

import httpx
import pytest

from adapters.settings import StoreSettings
from adapters.store import AdapterStore, ObjectDamaged, ObjectMissing, revision_prefix
from core.errors import Unavailable

BODY = b"hello, tenants"
SHA256 = hashlib.sha256(BODY).hexdigest()


def presigned(store, key="uploads/rev_1/file", *, body=BODY, expires_s=60):
    return store.presign_put(key, size_bytes=len(body), sha256=hashlib.sha256(body).hexdigest(), expires_s=expires_s)


def put(upload, body=BODY, **changes) -> int:
    arguments = {"url": upload.url, "headers": upload.headers} | changes
    return httpx.put(arguments["url"], content=body, headers=arguments["headers"]).status_code


def test_a_bucket_is_made_once_and_found_again(bucket_settings):
    for _ in range(2):
        AdapterStore(bucket_settings, StoreSettings()).ensure_bucket()


def test_a_presigned_upload_arrives_under_its_key(store, tmp_path):
    assert store.head("uploads/rev_1/file") is None
    assert put(presigned(store)) == 200
    assert store.head("uploads/rev_1/file") == len(BODY)
    assert store.download("uploads/rev_1/file", tmp_path / "x", bytes_max=100, sha256=SHA256) == len(BODY)
    assert (tmp_path / "x").read_bytes() == BODY


def test_a_presigned_upload_takes_nothing_else(store):
    upload = presigned(store)
    other_checksum = {"x-amz-checksum-sha256": base64.b64encode(bytes(32)).decode()}
    assert put(upload, BODY + b"!") == 403, "more bytes"
    assert put(upload, BODY[:-1]) == 403, "fewer bytes"
    assert put(upload, headers={}) == 403, "no checksum"
    assert put(upload, headers=other_checksum) == 403, "another checksum"
    assert put(upload, url=upload.url.replace("/rev_1/", "/rev_2/")) == 403, "another key"
    assert put(upload, url=upload.url.split("?")[0]) in (400, 403), "no signature"
    assert store.head("uploads/rev_1/file") is None


def test_a_presigned_upload_expires(store):
    upload = presigned(store, expires_s=1)
    time.sleep(2.1)  # the server compares whole seconds of its own clock: there is nothing to wait for
    assert put(upload) in (400, 403)


def test_downloads_are_bounded_in_size_content_and_time(store, tmp_path):
    put(presigned(store))
    key, path = "uploads/rev_1/file", tmp_path / "x"
    with pytest.raises(ObjectDamaged, match="longer than"):
        store.download(key, path, bytes_max=len(BODY) - 1)
    with pytest.raises(ObjectDamaged, match="SHA-256"):
        store.download(key, path, bytes_max=100, sha256="0" * 64)
    with pytest.raises(Unavailable, match="within"):
        store.download(key, path, bytes_max=100, timeout_s=0)
    with pytest.raises(ObjectMissing):
        store.download("uploads/rev_1/none", path, bytes_max=100)


def test_a_server_that_is_not_there_is_unavailable(s3_settings, tmp_path):
    nowhere = s3_settings.model_copy(update={"s3_endpoint": "http://127.0.0.1:9"})
    store = AdapterStore(nowhere, StoreSettings(store_attempts_max=1, store_connect_timeout_s=1))
    with pytest.raises(Unavailable) as failed:
        store.head("x")
    assert failed.value.code == "store_unavailable"
    with pytest.raises(Unavailable):
        store.download("x", tmp_path / "x", bytes_max=1)


def test_a_wrong_secret_is_unavailable_not_absent(bucket_settings, store):
    wrong = bucket_settings.model_copy(update={"s3_access_key": "somebody-else"})
    with pytest.raises(Unavailable) as failed:
        AdapterStore(wrong, StoreSettings(store_attempts_max=1)).head("x")
    assert failed.value.code == "store_unavailable"


def test_only_folders_below_the_roots_can_be_deleted(store, stored):
    digest = stored()
    assert store.has_revision(digest)
    for prefix in ("", "/", "adapters/", "adapters/" + digest):
        with pytest.raises(ValueError, match="names more"):
            store.delete_prefix(prefix)
    assert store.delete_prefix(revision_prefix(digest)) == 3
    assert not store.has_revision(digest)
    assert store.delete_prefix(revision_prefix(digest)) == 0
