"""Stored revisions: written whole or not at all, and read with bounds on size, content and time.

A revision lies under its digest, so the same one of two tenants is stored once. S3 itself is reached through ``s3``.
"""

import hashlib
import time
from pathlib import Path
from typing import Final

from adapters.manifest import (
    MANIFEST_BYTES_MAX,
    MANIFEST_FILE,
    AdapterManifest,
    ManifestDamaged,
    is_digest,
    read_manifest,
    sha256_of,
)
from adapters.s3 import Bucket, ObjectDamaged, base64_of, translated
from core.errors import Unavailable

_CHUNK_BYTES: Final = 1 << 20


def revision_prefix(digest: str) -> str:
    """Where a re-serialised revision lies. Raises ``ValueError`` for what is no digest."""
    if not is_digest(digest):
        raise ValueError(f"{digest!r} is no digest")
    return f"adapters/{digest}/"


class AdapterStore:
    """The revisions of one bucket. Thread-safe; every call blocks."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def download(
        self, key: str, path: Path, *, bytes_max: int, sha256: str | None = None, timeout_s: float | None = None
    ) -> int:
        """Write an object to ``path`` and return its size. Raises ``ObjectMissing``; ``ObjectDamaged`` when it is
        longer than ``bytes_max`` or has another checksum; ``Unavailable`` when S3 fails or ``timeout_s`` is over.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        hasher, size = hashlib.sha256(), 0
        with translated(key), path.open("wb") as out:
            body = self.bucket.client.get_object(Bucket=self.bucket.name, Key=key)["Body"]
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
        return self.bucket.head(revision_prefix(digest) + MANIFEST_FILE) is not None

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
            with translated(prefix + file.path), (folder / file.path).open("rb") as body:
                self.bucket.client.put_object(
                    Bucket=self.bucket.name, Key=prefix + file.path, Body=body, ChecksumSHA256=base64_of(file.sha256)
                )
        with translated(prefix + MANIFEST_FILE):
            self.bucket.client.put_object(Bucket=self.bucket.name, Key=prefix + MANIFEST_FILE, Body=manifest.to_json())
        return digest

    def download_manifest(self, digest: str, path: Path, *, timeout_s: float | None = None) -> AdapterManifest:
        """The manifest of a stored revision, also written to ``path``. Raises ``ObjectMissing``, ``ObjectDamaged``."""
        self.download(revision_prefix(digest) + MANIFEST_FILE, path, bytes_max=MANIFEST_BYTES_MAX, timeout_s=timeout_s)
        try:
            return read_manifest(path.read_bytes(), digest)
        except ManifestDamaged as error:
            raise ObjectDamaged(str(error)) from error

    def remove_revision(self, digest: str) -> int:
        """Delete a stored revision, its manifest first so that it is never found in part; returns how many objects
        there were. Nobody may still refer to the digest: several adapters can.
        """
        manifest = revision_prefix(digest) + MANIFEST_FILE
        found = self.bucket.head(manifest) is not None
        with translated(manifest):
            self.bucket.client.delete_object(Bucket=self.bucket.name, Key=manifest)
        return int(found) + self.bucket.delete_prefix(revision_prefix(digest))
