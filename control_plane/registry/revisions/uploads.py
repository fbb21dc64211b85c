"""Uploads of an announced revision: one presigned URL for each file, or for each part of a large one, and the check
that all have arrived.

A URL is a secret while it is valid, so none is stored; a replay gets newly signed ones. No URL outlives the
announcement by more than one lifetime, and ``cleanup`` relies on it. Signing is local arithmetic. Multipart uploads are
opened and completed here, between transactions and never inside one. Fails closed: without S3 nothing is opened or
completed, and the same request continues later.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec
from sqlalchemy import Engine

from adapters.object_store.multipart import FilePart, parts_of
from adapters.object_store.upload_store import UploadStore, has_arrived, upload_key
from control_plane.registry.revisions import service as revisions
from control_plane.registry.revisions.upload_rules import FileUpload
from control_plane.registry.schemas import PartView, RevisionCreated, RevisionView, UploadView
from core import clock
from core.db import unit_of_work
from core.errors import Conflict

URL_USEFUL_S: Final = 60
"""A URL that would be valid for less than this is not returned."""
_PARTS_NAMED: Final = 10


class Uploads:
    """The uploads of revisions into one object store."""

    def __init__(self, engine: Engine, store: UploadStore, *, lifetime_s: int) -> None:
        self._engine = engine
        self._store = store
        self._lifetime_s = lifetime_s

    def without_urls(self, revision: RevisionView) -> RevisionCreated:
        """The response to an announcement without URLs, which may be stored."""
        return RevisionCreated(
            id=revision.id, status=revision.status, uploads=[], uploads_expire_at=self._expire_at(revision.created_at)
        )

    def with_all_urls(self, created: RevisionCreated) -> RevisionCreated:
        """The response to an announcement, first or replayed, with URLs for all files while the revision is
        uploading.
        """
        if created.status != "uploading" or self._expires_s(created) < URL_USEFUL_S:
            return created
        uploads = []
        for file in self._files(created.id):
            ready = self._opened(created.id, file) if file.part_bytes else file
            if ready is not None:
                uploads.append(self._signed(created, ready, _parts(file)))
        return msgspec.structs.replace(created, uploads=uploads)

    def with_missing_urls(self, created: RevisionCreated) -> RevisionCreated:
        """The response with URLs only for missing files and parts. Raises Conflict once the URLs of this announcement
        have expired.
        """
        if created.status != "uploading":
            return created
        if self._expires_s(created) < URL_USEFUL_S:
            raise Conflict(
                "revision: the time to upload its files is over. Announce a new revision.", code="upload_urls_expired"
            )
        uploads = [view for file in self._files(created.id) if (view := self._missing(created, file)) is not None]
        return msgspec.structs.replace(created, uploads=uploads)

    def complete_uploads(self, revision_id: str) -> None:
        """Complete the multipart uploads. Raises Conflict naming the first file that is missing or incomplete."""
        for file in self._files(revision_id):
            key = upload_key(revision_id, file.path)
            size_bytes, parts = self._store.head(key), []
            if size_bytes is None and file.s3_upload_id is not None:
                parts = self._store.complete_multipart(key, file.s3_upload_id, _parts(file))
                size_bytes = None if parts else self._store.head(key)
            if size_bytes is None:
                raise Conflict(_not_uploaded(file, parts), code="artifact_missing", param=file.path)
            if size_bytes != file.size_bytes:
                raise Conflict(
                    f"{file.path}: {size_bytes} bytes were uploaded, {file.size_bytes} were announced. "
                    "Upload the file again.",
                    code="artifact_size_mismatch",
                    param=file.path,
                )

    def _missing(self, created: RevisionCreated, file: FileUpload) -> UploadView | None:
        key = upload_key(created.id, file.path)
        if self._store.head(key) == file.size_bytes:
            return None
        if not file.part_bytes:
            return self._signed(created, file, [])
        there = self._store.list_parts(key, file.s3_upload_id) if file.s3_upload_id else None
        if there is None:
            opened = self._opened(
                created.id, msgspec.structs.replace(file, s3_upload_id=None), instead_of=file.s3_upload_id
            )
            return self._signed(created, opened, _parts(file)) if opened else None
        missing = [part for part in _parts(file) if not has_arrived(part, there)]
        return self._signed(created, file, missing) if missing else None

    def _opened(self, revision_id: str, file: FileUpload, *, instead_of: str | None = None) -> FileUpload | None:
        """The file with an open multipart upload. None when the revision was completed or decided in the meantime.

        A crash between the store and the database leaves an upload without a row, which ``cleanup`` aborts.
        """
        if file.s3_upload_id is not None:
            return file
        key = upload_key(revision_id, file.path)
        fresh = self._store.open_multipart(key)
        with unit_of_work(self._engine) as session:
            kept = revisions.store_upload_id(session, revision_id, file.path, fresh, instead_of=instead_of)
        if kept != fresh:
            self._store.abort_multipart(key, fresh)
        return msgspec.structs.replace(file, s3_upload_id=kept) if kept else None

    def _signed(self, created: RevisionCreated, file: FileUpload, parts: Iterable[FilePart]) -> UploadView:
        key, expires_s = upload_key(created.id, file.path), self._expires_s(created)
        if file.s3_upload_id is None:
            put = self._store.presign_put(key, size_bytes=file.size_bytes, sha256=file.sha256, expires_s=expires_s)
            url, headers, views = put.url, put.headers, []
        else:
            url, headers = None, {}
            views = [self._signed_part(key, file.s3_upload_id, part, expires_s) for part in parts]
        return UploadView(
            path=file.path, method="PUT", size_bytes=file.size_bytes, url=url, headers=headers, parts=views
        )

    def _signed_part(self, key: str, upload_id: str, part: FilePart, expires_s: int) -> PartView:
        put = self._store.presign_part(key, upload_id, part, expires_s=expires_s)
        return PartView(
            number=part.number,
            offset_bytes=part.offset_bytes,
            size_bytes=part.size_bytes,
            url=put.url,
            headers=put.headers,
        )

    def _files(self, revision_id: str) -> list[FileUpload]:
        with unit_of_work(self._engine) as session:
            return revisions.announced_files(session, revision_id)

    def _expire_at(self, created_at: datetime) -> datetime:
        return created_at + timedelta(seconds=self._lifetime_s)

    def _expires_s(self, created: RevisionCreated) -> int:
        """The lifetime of a URL signed now: one second less than the remaining time, because a signature is dated by
        whole seconds and signing takes a moment.
        """
        return int((created.uploads_expire_at - clock.now()).total_seconds()) - 1


def revision_id_of(stored: bytes) -> str:
    """The id of the revision in a stored response."""
    return msgspec.json.decode(stored, type=RevisionCreated).id


def _parts(file: FileUpload) -> list[FilePart]:
    return parts_of(file.size_bytes, file.part_bytes) if file.part_bytes else []


def _not_uploaded(file: FileUpload, parts: list[int]) -> str:
    if not parts:
        return f"{file.path}: was not uploaded. PUT it to its URL, then complete the revision again."
    named = ", ".join(map(str, parts[:_PARTS_NAMED])) + (" …" if len(parts) > _PARTS_NAMED else "")
    return (
        f"{file.path}: of its {len(_parts(file))} parts, {len(parts)} were not uploaded ({named}). "
        "GET …/uploads for their URLs, then complete the revision again."
    )
