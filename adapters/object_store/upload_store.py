"""The store of tenants' uploads: presigned PUTs for exactly the announced keys and sizes, whole or in parts, and their
removal. Engines never read these files: ``ingest`` validates them and ``revision_store`` stores the normalized result.

Differences between servers that callers need not see: AWS checks a whole file against its signed SHA-256, rclone 1.75
only that it was declared; parts carry their size alone. rclone keeps the parts of an open upload in memory or in one
hidden file, so they are lost when it restarts (the upload is then gone and must be opened again). It accepts no other
content for a part that it has written, and ends an upload whose completion it refuses. Ingestion hashes every file.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from adapters.object_store.multipart import FilePart
from adapters.object_store.s3 import Bucket, ObjectMissing, base64_of, translated

if TYPE_CHECKING:
    from types_boto3_s3.type_defs import CompletedPartTypeDef  # a development dependency

_UPLOADS: Final = "uploads/"


class PresignedUpload(msgspec.Struct, frozen=True, kw_only=True):
    """One PUT that a tenant may make. The headers must be sent as they are: they are part of the signature."""

    method: str
    url: str
    headers: dict[str, str]


class StoredPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part as the store holds it."""

    size_bytes: int
    etag: str


def upload_key(revision_id: str, path: str) -> str:
    """The key of a tenant's uploaded file."""
    return f"{_UPLOADS}{revision_id}/{path}"


class UploadStore:
    """The ``uploads/`` of one bucket. Thread-safe. Fails closed: without S3 nothing is accepted."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def presign_put(self, key: str, *, size_bytes: int, sha256: str, expires_s: int) -> PresignedUpload:
        """A URL that accepts exactly ``size_bytes`` under ``key`` until it expires. AWS also checks the content against
        ``sha256`` (64 hex digits); other servers may only check that it was declared, so ingestion checks again.
        """
        params: dict[str, Any] = {"Key": key, "ContentLength": size_bytes}
        headers = {}
        if self.bucket.checksum_header:
            # A header and no query parameter: AWS leaves the latter unchecked (aws-sdk-go-v2, issue 2610).
            params["ChecksumSHA256"] = headers["x-amz-checksum-sha256"] = base64_of(sha256)
        return PresignedUpload(method="PUT", url=self._presign("put_object", params, expires_s), headers=headers)

    def presign_part(self, key: str, upload_id: str, part: FilePart, *, expires_s: int) -> PresignedUpload:
        """A URL that accepts exactly the bytes of one part of an open multipart upload until it expires."""
        params = {"Key": key, "UploadId": upload_id, "PartNumber": part.number, "ContentLength": part.size_bytes}
        return PresignedUpload(method="PUT", url=self._presign("upload_part", params, expires_s), headers={})

    def head(self, key: str) -> int | None:
        """Size of an object in bytes; None when it does not exist."""
        return self.bucket.head(key)

    def open_multipart(self, key: str) -> str:
        """Begin a multipart upload; returns the store's id of it."""
        with translated(key):
            return self.bucket.client.create_multipart_upload(Bucket=self.bucket.name, Key=key)["UploadId"]

    def list_parts(self, key: str, upload_id: str) -> dict[int, StoredPart] | None:
        """The parts that have arrived, by number; None when the upload is not open, whether it was completed or
        aborted.
        """
        there: dict[int, StoredPart] = {}
        pages = self.bucket.client.get_paginator("list_parts")
        try:
            with translated(key):
                for page in pages.paginate(Bucket=self.bucket.name, Key=key, UploadId=upload_id):
                    for part in page.get("Parts", []):
                        there[part["PartNumber"]] = StoredPart(size_bytes=part["Size"], etag=part["ETag"])
        except ObjectMissing:
            return None
        return there

    def complete_multipart(self, key: str, upload_id: str, parts: Sequence[FilePart]) -> list[int]:
        """Join the parts to the object, or return the numbers of the parts that are missing or have another size. An
        upload that is no longer open returns no numbers and changes nothing: ``head`` says whether it was completed.
        """
        there = self.list_parts(key, upload_id)
        if there is None:
            return []
        if missing := [part.number for part in parts if not has_arrived(part, there)]:
            return missing
        listed: list[CompletedPartTypeDef] = [
            {"PartNumber": part.number, "ETag": there[part.number].etag} for part in parts
        ]
        try:
            with translated(key):
                self.bucket.client.complete_multipart_upload(
                    Bucket=self.bucket.name, Key=key, UploadId=upload_id, MultipartUpload={"Parts": listed}
                )
        except ObjectMissing:  # another process has just completed it
            return []
        return []

    def abort_multipart(self, key: str, upload_id: str) -> None:
        """Abort a multipart upload and free its parts. Idempotent."""
        try:
            with translated(key):
                self.bucket.client.abort_multipart_upload(Bucket=self.bucket.name, Key=key, UploadId=upload_id)
        except ObjectMissing:
            return

    def remove(self, revision_id: str) -> int:
        """Delete everything that was uploaded for a revision and abort its open multipart uploads. Returns the number
        of objects.
        """
        prefix = upload_key(revision_id, "")
        for key, upload_id, _ in self._open_multiparts(prefix):
            self.abort_multipart(key, upload_id)
        return self.bucket.delete_prefix(prefix)

    def abort_abandoned(self, before: datetime, *, limit: int) -> int:
        """Abort up to ``limit`` multipart uploads that began before an instant, recorded elsewhere or not. Returns
        their number.
        """
        aborted = 0
        for key, upload_id, begun in self._open_multiparts(_UPLOADS):
            if aborted == limit:
                break
            if begun < before:
                self.abort_multipart(key, upload_id)
                aborted += 1
        return aborted

    def _open_multiparts(self, prefix: str) -> Iterator[tuple[str, str, datetime]]:
        """Key, id and start time of each."""
        pages = self.bucket.client.get_paginator("list_multipart_uploads")
        try:
            with translated(prefix):
                for page in pages.paginate(Bucket=self.bucket.name, Prefix=prefix):
                    for each in page.get("Uploads", []):
                        yield each["Key"], each["UploadId"], each["Initiated"]
        except ObjectMissing:  # so rclone says that this bucket never had any
            return

    def _presign(self, operation: str, params: dict[str, Any], expires_s: int) -> str:
        return self.bucket.signer.generate_presigned_url(
            operation, Params={"Bucket": self.bucket.name, **params}, ExpiresIn=expires_s
        )


def has_arrived(part: FilePart, there: dict[int, StoredPart]) -> bool:
    """Whether a part has arrived in the size it must have."""
    found = there.get(part.number)
    return found is not None and found.size_bytes == part.size_bytes
