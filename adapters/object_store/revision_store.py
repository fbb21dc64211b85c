"""Stored revisions: written completely or not at all, and read with bounds on size, content and time.

A revision is stored under its digest, so equal revisions of two tenants are stored once. ``s3`` does the calls.
"""

import hashlib
from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Final

from adapters.manifest import (
    MANIFEST_BYTES_MAX,
    MANIFEST_FILE,
    AdapterManifest,
    ManifestDamaged,
    StoredFile,
    is_digest,
    read_manifest,
    sha256_of,
)
from adapters.object_store.download_progress import Download
from adapters.object_store.object_reader import ObjectReader, with_attempts
from adapters.object_store.ranged_download import RangePlan, download_ranges
from adapters.object_store.s3 import Bucket, ObjectDamaged, StoreUnavailable, base64_of, translated

_CHUNK_BYTES: Final = 1 << 20
_ADAPTERS: Final = "adapters/"


def revision_prefix(digest: str) -> str:
    """The key prefix of a re-serialized revision. Raises ``ValueError`` for a text that is not a digest."""
    if not is_digest(digest):
        raise ValueError(f"{digest!r} is no digest")
    return f"{_ADAPTERS}{digest}/"


class RevisionStore:
    """The revisions of one bucket. Thread-safe; every call blocks."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._reader = ObjectReader(bucket)
        self._plan = RangePlan(
            part_bytes=bucket.settings.store_part_bytes,
            parallel=bucket.settings.store_parts_parallel,
            attempts_max=bucket.settings.store_attempts_max,
            slow_s=bucket.settings.store_slow_part_s,
        )

    def download(
        self, key: str, path: Path, *, bytes_max: int, sha256: str | None = None, timeout_s: float | None = None
    ) -> int:
        """Write an object of unknown size to ``path`` and return its size. Raises ``ObjectMissing``; ``ObjectDamaged``
        when it is longer than ``bytes_max`` or has another checksum; ``Unavailable`` when S3 fails or time is up.
        """
        return self._download(Download(key).begin(timeout_s), key, path, bytes_max=bytes_max, sha256=sha256)

    def download_file(self, digest: str, file: StoredFile, path: Path, download: Download) -> None:
        """Write one file of a stored revision to ``path``. Raises as ``download_object`` does."""
        self.download_object(revision_prefix(digest) + file.path, file, path, download)

    def download_object(self, key: str, file: StoredFile, path: Path, download: Download) -> None:
        """Write the object that must be ``file`` to ``path``, a large one in parallel ranges. Raises as
        ``adapters.object_store.ranged_download.download_ranges`` does.
        """
        download_ranges(
            self._reader,
            key,
            path,
            size_bytes=file.size_bytes,
            sha256=file.sha256,
            plan=self._plan,
            download=download,
        )

    def download_manifest(self, digest: str, path: Path, download: Download | None = None) -> AdapterManifest:
        """The manifest of a stored revision, also written to ``path``. Raises ``ObjectMissing``, ``ObjectDamaged``,
        ``Unavailable``.
        """
        key = revision_prefix(digest) + MANIFEST_FILE
        self._download(download or Download(key).begin(), key, path, bytes_max=MANIFEST_BYTES_MAX)
        try:
            return read_manifest(path.read_bytes(), digest)
        except ManifestDamaged as error:
            raise ObjectDamaged(str(error)) from error

    def _download(self, download: Download, key: str, path: Path, *, bytes_max: int, sha256: str | None = None) -> int:
        size, found = with_attempts(
            download, self._plan.attempts_max, lambda: self._copy(download, key, path, bytes_max)
        )
        if sha256 is not None and found != sha256:
            raise ObjectDamaged(f"{key} has SHA-256 {found}, not {sha256}")
        return size

    def _copy(self, download: Download, key: str, path: Path, bytes_max: int) -> tuple[int, str]:
        """Size and SHA-256 of the copied bytes."""
        hasher, size = hashlib.sha256(), 0
        with path.open("wb") as out, self._reader.open(key) as body:
            if body.total_bytes > bytes_max:
                raise ObjectDamaged(f"{key} is longer than the {bytes_max} bytes it may have")
            while chunk := body.read(_CHUNK_BYTES):
                download.check()
                download.touch()
                hasher.update(chunk)
                out.write(chunk)
                size += len(chunk)
        if size != body.total_bytes:
            raise StoreUnavailable(f"{key} ended before its last byte", kind="silent")
        return size, hasher.hexdigest()

    def has_revision(self, digest: str) -> bool:
        """Whether the revision is stored completely: its manifest is written last."""
        return self.bucket.head(revision_prefix(digest) + MANIFEST_FILE) is not None

    def put_revision(self, folder: Path, manifest: AdapterManifest) -> str:
        """Store a re-serialized adapter and return its digest; does nothing when it is stored already. Raises
        ``ObjectDamaged`` when the folder's files differ from the manifest. Safe to repeat after a crash at any point.
        """
        digest = manifest.digest
        if self.has_revision(digest):
            return digest
        prefix = revision_prefix(digest)
        for file in manifest.files:
            if sha256_of(str(folder / file.path)) != (file.size_bytes, file.sha256):
                raise ObjectDamaged(f"{file.path} is not what the manifest {digest} says")
            with translated(prefix + file.path), (folder / file.path).open("rb") as body:
                self.bucket.client.put_object(
                    Bucket=self.bucket.name,
                    Key=prefix + file.path,
                    Body=body,
                    ChecksumSHA256=base64_of(file.sha256),
                )
        with translated(prefix + MANIFEST_FILE):
            self.bucket.client.put_object(Bucket=self.bucket.name, Key=prefix + MANIFEST_FILE, Body=manifest.to_json())
        return digest

    def stored(self) -> Iterator[tuple[str, datetime]]:
        """Every digest with any stored object, complete or not, with the time of its last write, as an iterator. Raises
        ``Unavailable`` when S3 fails.
        """
        with translated(_ADAPTERS):
            pages = self.bucket.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket.name, Prefix=_ADAPTERS
            )
            listed = (entry for page in pages for entry in page.get("Contents", []))
            entries = ((entry["Key"].split("/")[1], entry["LastModified"]) for entry in listed)
            for digest, written in groupby(entries, key=lambda entry: entry[0]):  # S3 lists keys in their order
                if is_digest(digest):
                    yield digest, max(at for _, at in written)

    def remove_revision(self, digest: str) -> int:
        """Delete a stored revision, its manifest first so that it is never found in part. Returns the number of
        objects. No revision may refer to the digest any longer; several adapters can share one.
        """
        manifest = revision_prefix(digest) + MANIFEST_FILE
        found = self.bucket.head(manifest) is not None
        with translated(manifest):
            self.bucket.client.delete_object(Bucket=self.bucket.name, Key=manifest)
        return int(found) + self.bucket.delete_prefix(revision_prefix(digest))
