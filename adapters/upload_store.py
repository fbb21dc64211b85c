"""Where tenants' files arrive: presigned PUTs for exactly the announced keys and sizes, and their removal.

Nothing here is ever read by an engine: ``ingest`` judges the files and ``store`` keeps what it made of them.
"""

import msgspec

from adapters.s3 import Bucket, base64_of


class PresignedUpload(msgspec.Struct, frozen=True, kw_only=True):
    """One PUT that a tenant may make. The headers must be sent as they are: they are part of the signature."""

    method: str
    url: str
    headers: dict[str, str]


def upload_key(revision_id: str, path: str) -> str:
    """Where a tenant's file arrives."""
    return f"uploads/{revision_id}/{path}"


class UploadStore:
    """The ``uploads/`` of one bucket. Thread-safe. Fails closed: without S3 nothing is accepted."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def presign_put(self, key: str, *, size_bytes: int, sha256: str, expires_s: int) -> PresignedUpload:
        """A URL that accepts exactly ``size_bytes`` under ``key`` until it expires. AWS also checks the content against
        ``sha256`` (64 hex digits); other servers may only check that it was declared, so ingestion checks again.
        """
        checksum = base64_of(sha256)
        url = self.bucket.client.generate_presigned_url(
            "put_object",
            Params={"Bucket": self.bucket.name, "Key": key, "ContentLength": size_bytes, "ChecksumSHA256": checksum},
            ExpiresIn=expires_s,
        )
        return PresignedUpload(method="PUT", url=url, headers={"x-amz-checksum-sha256": checksum})

    def head(self, key: str) -> int | None:
        """Size of an object in bytes, or None where there is none."""
        return self.bucket.head(key)

    def remove(self, revision_id: str) -> int:
        """Delete everything that was uploaded for a revision; returns how many objects there were."""
        return self.bucket.delete_prefix(upload_key(revision_id, ""))
