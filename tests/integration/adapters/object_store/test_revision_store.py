"""The store against the real S3 server."""

import hashlib

import pytest

from adapters.object_store.revision_store import RevisionStore
from adapters.object_store.s3 import Bucket, ObjectDamaged, ObjectMissing
from adapters.settings import StoreSettings
from core.errors import Unavailable

BODY = b"hello, tenants"
SHA256 = hashlib.sha256(BODY).hexdigest()


def test_a_bucket_is_created_once_and_found_again(bucket_settings):
    for _ in range(2):
        Bucket(bucket_settings, StoreSettings()).ensure()


def test_downloads_are_bounded_in_size_content_and_time(store, tmp_path):
    key, path = "uploads/rev_1/file", tmp_path / "x"
    store.bucket.client.put_object(Bucket=store.bucket.name, Key=key, Body=BODY)
    assert store.download(key, path, bytes_max=len(BODY), sha256=SHA256) == len(BODY)
    assert path.read_bytes() == BODY
    with pytest.raises(ObjectDamaged, match="longer than"):
        store.download(key, path, bytes_max=len(BODY) - 1)
    with pytest.raises(ObjectDamaged, match="SHA-256"):
        store.download(key, path, bytes_max=100, sha256="0" * 64)
    with pytest.raises(Unavailable, match="within"):
        store.download(key, path, bytes_max=100, timeout_s=0)
    with pytest.raises(ObjectMissing):
        store.download("uploads/rev_1/none", path, bytes_max=100)


def test_an_unreachable_server_is_unavailable(s3_settings, tmp_path):
    nowhere = s3_settings.model_copy(update={"s3_endpoint": "http://127.0.0.1:9"})
    store = RevisionStore(Bucket(nowhere, StoreSettings(store_attempts_max=1, store_connect_timeout_s=1)))
    with pytest.raises(Unavailable) as failed:
        store.bucket.head("x")
    assert failed.value.code == "store_unavailable"
    with pytest.raises(Unavailable):
        store.download("x", tmp_path / "x", bytes_max=1)


def test_a_wrong_secret_is_unavailable_not_absent(bucket_settings, store):
    wrong = bucket_settings.model_copy(update={"s3_access_key": "somebody-else"})
    with pytest.raises(Unavailable) as failed:
        Bucket(wrong, StoreSettings(store_attempts_max=1)).head("x")
    assert failed.value.code == "store_unavailable"


def test_only_folders_below_the_roots_can_be_deleted(store, stored):
    digest = stored()
    assert store.has_revision(digest)
    for prefix in ("", "/", "adapters/", "adapters/" + digest):
        with pytest.raises(ValueError, match="names more"):
            store.bucket.delete_prefix(prefix)
    assert store.remove_revision(digest) == 3
    assert not store.has_revision(digest)
    assert store.remove_revision(digest) == 0
    with pytest.raises(ValueError, match="no digest"):
        store.remove_revision("../other")
