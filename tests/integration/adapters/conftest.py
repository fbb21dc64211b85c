"""A store on the real S3 server, in the test's own bucket, and revisions stored in it."""

import secrets

import httpx
import pytest

from adapters.ingest import ingest
from adapters.manifest import StoredFile
from adapters.object_store.revision_store import RevisionStore
from adapters.object_store.s3 import Bucket
from adapters.object_store.upload_store import UploadStore, upload_key
from adapters.report import ReportBuilder
from adapters.settings import StoreSettings, UploadSettings
from adapters.validation.bounds import PlatformBounds, UploadLimits
from adapters.validation.normalize import normalize
from adapters.validation.validate import validate
from tests.fixtures.uploads.peft_adapters import declared_files, tiny_base, write_adapter

LIMITS = UploadLimits(plan_name="starter", rank_max=64, bytes_max=1_000_000)


@pytest.fixture
def bucket_settings(s3_settings):
    return s3_settings.model_copy(update={"s3_bucket": f"test-{secrets.token_hex(6)}"})


@pytest.fixture
def store(bucket_settings) -> RevisionStore:
    store = RevisionStore(Bucket(bucket_settings, StoreSettings(store_attempts_max=1)))
    store.bucket.ensure()
    return store


def upload(store, revision_id, folder, *, alter=lambda path, content: content):
    """Declare and PUT a folder's files as a tenant does; returns what was declared."""
    files = [StoredFile(**declared) for declared in declared_files(folder)]
    for file in files:
        put = UploadStore(store.bucket).presign_put(
            upload_key(revision_id, file.path), size_bytes=file.size_bytes, sha256=file.sha256, expires_s=60
        )
        if (content := alter(file.path, (folder / file.path).read_bytes())) is not None:
            httpx.request(put.method, put.url, headers=put.headers, content=content).raise_for_status()
    return files


def ingested(store, revision_id, files, **changes):
    return ingest(
        store,
        revision_id=revision_id,
        files=files,
        **{"base": tiny_base(), "known_bases": {"other-7b": "other-7b"}, "limits": LIMITS, "settings": UploadSettings()}
        | changes,
    )


@pytest.fixture
def stored(store, tmp_path):
    """Store a valid adapter of a seed, without the upload and the child; returns its digest."""

    def put(seed: int = 0) -> str:
        base, report = tiny_base(), ReportBuilder()
        folder, revision = write_adapter(tmp_path / f"adapter-{seed}", base, seed=seed), tmp_path / f"revision-{seed}"
        revision.mkdir(exist_ok=True)
        accepted = validate(folder, base=base, known_bases={}, limits=LIMITS, bounds=PlatformBounds(), report=report)
        return store.put_revision(revision, normalize(accepted, folder, revision, base))

    return put
