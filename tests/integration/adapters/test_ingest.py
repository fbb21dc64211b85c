"""From presigned PUTs to a stored revision, on the real S3 server and with the real confined child."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from adapters.manifest import StoredFile, sha256_of
from adapters.object_store.revision_store import RevisionStore, revision_prefix
from adapters.object_store.s3 import Bucket
from adapters.settings import StoreSettings, UploadSettings
from core.errors import Unavailable
from tests.fixtures.uploads.peft_adapters import tiny_base, write_adapter
from tests.integration.adapters.conftest import ingested, upload


def codes(verdict):
    return [(problem.code, problem.file) for problem in verdict.problems]


@pytest.fixture
def folder(tmp_path):
    return write_adapter(tmp_path / "adapter", tiny_base())


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "work").mkdir()
    return UploadSettings(upload_work_dir=tmp_path / "work")


def test_a_good_upload_is_stored_by_digest_and_leaves_nothing_behind(store, folder, settings, tmp_path):
    verdict = ingested(store, "rev_1", upload(store, "rev_1", folder), settings=settings)
    assert verdict.accepted
    manifest = store.download_manifest(verdict.digest, tmp_path / "manifest.json")
    assert manifest == verdict.manifest
    for file in manifest.files:
        store.download(revision_prefix(verdict.digest) + file.path, tmp_path / "file", bytes_max=1_000_000)
        assert sha256_of(str(tmp_path / "file")) == (file.size_bytes, file.sha256)
        assert (tmp_path / "file").read_bytes() != (folder / file.path).read_bytes()
    assert not any((tmp_path / "work").iterdir())


def test_ingesting_twice_or_from_another_tenant_gives_one_revision(store, folder):
    first = ingested(store, "rev_1", upload(store, "rev_1", folder))
    again = ingested(store, "rev_1", upload(store, "rev_1", folder))
    other = ingested(store, "rev_2", upload(store, "rev_2", folder))
    assert first == again == other


def test_the_same_files_ingested_at_once_are_stored_whole_and_once(bucket_settings, folder, tmp_path):
    """With the shipped retries: rclone may answer 500 when several PUTs of one key meet."""
    store = RevisionStore(Bucket(bucket_settings, StoreSettings()))
    store.bucket.ensure()
    declared = {name: upload(store, name, folder) for name in ("rev_1", "rev_2", "rev_3", "rev_4")}
    with ThreadPoolExecutor(4) as pool:
        verdicts = list(pool.map(lambda each: ingested(store, *each), declared.items()))
    (digest,) = {verdict.digest for verdict in verdicts}
    manifest = store.download_manifest(digest, tmp_path / "manifest.json")
    for file in manifest.files:
        store.download(revision_prefix(digest) + file.path, tmp_path / "x", bytes_max=1_000_000, sha256=file.sha256)
    listed = store.bucket.client.list_objects_v2(Bucket=store.bucket.name, Prefix="adapters/")["Contents"]
    # After racing PUTs rclone may list a key twice, as no S3 does.
    names = {file.path for file in manifest.files} | {"manifest.json"}
    assert {each["Key"] for each in listed} == {f"adapters/{digest}/{name}" for name in names}


def test_a_revision_interrupted_by_a_crash_is_completed_by_the_next_attempt(store, folder):
    digest = ingested(store, "rev_1", upload(store, "rev_1", folder)).digest
    store.bucket.client.delete_object(Bucket=store.bucket.name, Key=revision_prefix(digest) + "manifest.json")
    assert not store.has_revision(digest)
    assert ingested(store, "rev_1", upload(store, "rev_1", folder)).digest == digest
    assert store.has_revision(digest)


def test_a_file_that_was_never_uploaded_is_missing(store, folder):
    files = upload(store, "rev_1", folder, alter=lambda path, content: None if "safetensors" in path else content)
    assert codes(ingested(store, "rev_1", files)) == [("artifact_missing", "adapter_model.safetensors")]


def test_a_file_with_other_content_than_declared_is_refused(store, folder):
    def swapped(path, content):
        return content[:-1] + b"X" if "safetensors" in path else content

    verdict = ingested(store, "rev_1", upload(store, "rev_1", folder, alter=swapped))
    assert codes(verdict) == [("checksum_mismatch", "adapter_model.safetensors")]


def test_an_unreachable_store_gives_no_verdict(s3_settings, folder):
    nowhere = s3_settings.model_copy(update={"s3_endpoint": "http://127.0.0.1:9"})
    down = RevisionStore(Bucket(nowhere, StoreSettings(store_attempts_max=1, store_connect_timeout_s=1)))
    files = [
        StoredFile(path=name, size_bytes=1, sha256="0" * 64)
        for name in ("adapter_config.json", "adapter_model.safetensors")
    ]
    with pytest.raises(Unavailable):
        ingested(down, "rev_1", files)
