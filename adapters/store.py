"""Uploads and revisions in S3: presigned PUTs for tenants, bounded downloads, and revisions stored whole or not at all.

The only importer of boto3. Every failure of S3 becomes ``Unavailable``, an absent object ``ObjectMissing``: callers
decide what that means. Works on AWS and on anything that speaks its protocol with path-style addresses.
"""

import base64
import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import boto3.session
import msgspec
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from adapters.manifest import (
    MANIFEST_BYTES_MAX,
    MANIFEST_FILE,
    AdapterManifest,
    ManifestDamaged,
    is_digest,
    read_manifest,
    sha256_of,
)
from adapters.settings import StoreSettings
from core.errors import NotFound, Unavailable
from core.settings import S3Settings

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client  # a development dependency

_CHUNK_BYTES: Final = 1 << 20
_DELETE_BATCH: Final = 1000  # the most that one DeleteObjects call takes
_ABSENT: Final = frozenset({"404", "NoSuchKey", "NotFound", "NoSuchBucket"})


class ObjectMissing(NotFound):
    """No object under this key."""

    default_code = "object_missing"


class ObjectDamaged(Unavailable):
    """The object has another size or checksum than it must have."""

    default_code = "object_damaged"


class PresignedUpload(msgspec.Struct, frozen=True, kw_only=True):
    """One PUT that a tenant may make. The headers must be sent as they are: they are part of the signature."""

    method: str
    url: str
    headers: dict[str, str]


def upload_key(revision_id: str, path: str) -> str:
    """Where a tenant's file arrives."""
    return f"uploads/{revision_id}/{path}"


def revision_prefix(digest: str) -> str:
    """Where a re-serialised revision lies. Raises ``ValueError`` for what is no digest."""
    if not is_digest(digest):
        raise ValueError(f"{digest!r} is no digest")
    return f"adapters/{digest}/"


class AdapterStore:
    """One bucket. Thread-safe; every call blocks, for at most the settings' timeouts times their attempts."""

    def __init__(self, s3: S3Settings, settings: StoreSettings) -> None:
        credentials: dict[str, Any] = {}
        if s3.s3_access_key:
            credentials = {
                "aws_access_key_id": s3.s3_access_key,
                "aws_secret_access_key": s3.s3_secret_key.get_secret_value(),
            }
        self._bucket = s3.s3_bucket
        self._region = s3.s3_region
        self._client: S3Client = boto3.session.Session().client(
            "s3",
            endpoint_url=s3.s3_endpoint,
            region_name=s3.s3_region,
            config=Config(
                signature_version="s3v4",
                s3={"addressing_style": "path"},
                connect_timeout=settings.store_connect_timeout_s,
                read_timeout=settings.store_read_timeout_s,
                retries={"mode": "standard", "total_max_attempts": settings.store_attempts_max},
                max_pool_connections=settings.store_connections_max,
                request_checksum_calculation="when_required",  # not every S3 reads checksums in trailers
                response_checksum_validation="when_required",
            ),
            **credentials,
        )

    def ensure_bucket(self) -> None:
        """Create the bucket if it does not exist."""
        try:
            with _translated(self._bucket):
                self._client.head_bucket(Bucket=self._bucket)
        except ObjectMissing:
            place: Any = {"CreateBucketConfiguration": {"LocationConstraint": self._region}}
            with _translated(self._bucket):
                self._client.create_bucket(Bucket=self._bucket, **({} if self._region == "us-east-1" else place))

    def presign_put(self, key: str, *, size_bytes: int, sha256: str, expires_s: int) -> PresignedUpload:
        """A URL that accepts exactly ``size_bytes`` under ``key`` until it expires. AWS also checks the content against
        ``sha256`` (64 hex digits); other servers may only check that it was declared, so ingestion checks again.
        """
        checksum = _base64_of(sha256)
        url = self._client.generate_presigned_url(
            "put_object",
            Params={"Bucket": self._bucket, "Key": key, "ContentLength": size_bytes, "ChecksumSHA256": checksum},
            ExpiresIn=expires_s,
        )
        return PresignedUpload(method="PUT", url=url, headers={"x-amz-checksum-sha256": checksum})

    def head(self, key: str) -> int | None:
        """Size of an object in bytes, or None where there is none."""
        try:
            with _translated(key):
                return self._client.head_object(Bucket=self._bucket, Key=key)["ContentLength"]
        except ObjectMissing:
            return None

    def download(
        self, key: str, path: Path, *, bytes_max: int, sha256: str | None = None, timeout_s: float | None = None
    ) -> int:
        """Write an object to ``path`` and return its size. Raises ``ObjectMissing``; ``ObjectDamaged`` when it is
        longer than ``bytes_max`` or has another checksum; ``Unavailable`` when S3 fails or ``timeout_s`` is over.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        hasher, size = hashlib.sha256(), 0
        with _translated(key), path.open("wb") as out:
            body = self._client.get_object(Bucket=self._bucket, Key=key)["Body"]
            with body:
                for chunk in body.iter_chunks(_CHUNK_BYTES):
                    size += len(chunk)
                    if size > bytes_max:
                        raise ObjectDamaged(f"{key} is longer than the {bytes_max} bytes it may have")
                    if deadline is not None and time.monotonic() > deadline:
                        raise Unavailable(f"{key} could not be downloaded within {timeout_s:g} s", code="store_timeout")
                    hasher.update(chunk)
                    out.write(chunk)
        if sha256 is not None and hasher.hexdigest() != sha256:
            raise ObjectDamaged(f"{key} has SHA-256 {hasher.hexdigest()}, not {sha256}")
        return size

    def has_revision(self, digest: str) -> bool:
        """Whether the revision is stored whole: its manifest is written last."""
        return self.head(revision_prefix(digest) + MANIFEST_FILE) is not None

    def put_revision(self, folder: Path, manifest: AdapterManifest) -> str:
        """Store a re-serialised adapter and return its digest; nothing happens when it is stored already. Raises
        ``ObjectDamaged`` when the folder's files are not the manifest's. Safe to repeat after a crash at any point.
        """
        digest = manifest.digest
        if self.has_revision(digest):
            return digest
        prefix = revision_prefix(digest)
        for file in manifest.files:
            if sha256_of(str(folder / file.path)) != (file.size_bytes, file.sha256):
                raise ObjectDamaged(f"{file.path} is not what the manifest {digest} says")
            with _translated(prefix + file.path), (folder / file.path).open("rb") as body:
                self._client.put_object(
                    Bucket=self._bucket, Key=prefix + file.path, Body=body, ChecksumSHA256=_base64_of(file.sha256)
                )
        with _translated(prefix + MANIFEST_FILE):
            self._client.put_object(Bucket=self._bucket, Key=prefix + MANIFEST_FILE, Body=manifest.to_json())
        return digest

    def download_manifest(self, digest: str, path: Path, *, timeout_s: float | None = None) -> AdapterManifest:
        """The manifest of a stored revision, also written to ``path``. Raises ``ObjectMissing``, ``ObjectDamaged``."""
        self.download(revision_prefix(digest) + MANIFEST_FILE, path, bytes_max=MANIFEST_BYTES_MAX, timeout_s=timeout_s)
        try:
            return read_manifest(path.read_bytes(), digest)
        except ManifestDamaged as error:
            raise ObjectDamaged(str(error)) from error

    def delete_prefix(self, prefix: str) -> int:
        """Delete every object under ``prefix``, which must end with a slash; returns how many there were."""
        if not prefix.endswith("/") or prefix.count("/") < 2:
            raise ValueError(f"{prefix!r} names more than one revision's folder")
        deleted = 0
        with _translated(prefix):
            for page in self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=prefix, PaginationConfig={"PageSize": _DELETE_BATCH}
            ):
                if keys := [entry["Key"] for entry in page.get("Contents", [])]:
                    objects: Any = {"Objects": [{"Key": key} for key in keys]}
                    answer = self._client.delete_objects(Bucket=self._bucket, Delete=objects)
                    if errors := answer.get("Errors"):
                        raise Unavailable(f"{errors[0].get('Key')} could not be deleted", code="store_unavailable")
                    deleted += len(keys)
        return deleted


@contextmanager
def _translated(key: str) -> Iterator[None]:
    """S3's failures as our errors. What S3 says goes to the cause, not into the message."""
    try:
        yield
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") in _ABSENT:
            raise ObjectMissing(f"there is no {key}") from error
        raise Unavailable(f"the object store refused a call on {key}", code="store_unavailable") from error
    except BotoCoreError as error:
        raise Unavailable(f"the object store did not answer for {key}", code="store_unavailable") from error


def _base64_of(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()
