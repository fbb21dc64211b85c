"""The files of a tenant: stored, listed, read and deleted. Another tenant's file is as absent as none.

A file's row is written before its object in S3, and is visible once the object is complete. So a crash leaves no object
without a row, and the cleanup finds what was left half-way.
"""

import contextlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from tempfile import TemporaryFile
from typing import IO, Any, Final

import sqlalchemy as sa
from sqlalchemy import Engine
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from adapters.object_store.s3 import Bucket, ObjectMissing, translated
from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.batches.models import BatchFile, BatchRow
from control_plane.batches.schemas import FileDeletion, FileView, OpenAIPage, Purpose, openai_page
from control_plane.batches.upload_form import UploadedFile
from control_plane.settings import BatchSettings
from control_plane.tenants import service as tenants
from core.db import database_now, total, unit_of_work
from core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from core.ids import new_id
from core.struct_types import view_of

_HALF_WAY_MAX: Final = timedelta(hours=1)
_PAGE_MAX: Final = 1000
_CHUNK_BYTES: Final = 65_536


def store(
    engine: Engine,
    bucket: Bucket,
    settings: BatchSettings,
    principal: Principal,
    uploaded: UploadedFile,
    *,
    own: bool = True,
) -> FileView:
    """Store an uploaded input file. ``own``: the tenant asked for the file itself, so it is audited. Raises
    InvalidRequest for another purpose, and Forbidden where the tenant stores too much.
    """
    if uploaded.purpose != b"batch":
        raise InvalidRequest("purpose: must be batch.", param="purpose")
    if not uploaded.size_bytes:
        raise InvalidRequest("file: it is empty. Write one request in each line.", code="empty_file", param="file")
    tenant_id = principal.own_tenant_id
    with unit_of_work(engine) as session:
        tenants.lock(session, tenant_id)  # so that no two uploads take the last bytes
        mine = select(total(col(BatchFile.size_bytes))).where(
            BatchFile.tenant_id == tenant_id, col(BatchFile.deleted_at).is_(None)
        )
        if session.exec(mine).one() + uploaded.size_bytes > settings.batch_stored_bytes_max:
            raise Forbidden(
                f"file: the files of a tenant may have {settings.batch_stored_bytes_max} bytes. Delete some that are "
                "no longer used.",
                code="file_quota_exceeded",
                param="file",
            )
        now = database_now(session)
        row = BatchFile(
            id=new_id("file"), tenant_id=tenant_id, filename=str(uploaded.filename), purpose="batch",
            size_bytes=uploaded.size_bytes, created_at=now, expires_at=expiry(now, settings),
        )  # fmt: skip
        session.add(row)
    try:
        put(bucket, row.id, uploaded.content)
    except BaseException:
        with contextlib.suppress(Exception):  # else the row is in the tenant's way until the cleanup finds it
            discard(engine, row.id)
        raise
    with unit_of_work(engine) as session:
        stored = session.get_one(BatchFile, row.id)
        stored.stored_at = database_now(session)
        if own:
            audited(session, principal, "file.created", row.id, details={"size_bytes": row.size_bytes})
        return view(stored)


def expiry(now: datetime, settings: BatchSettings) -> datetime:
    """When a file that is made now is deleted."""
    return now + timedelta(days=settings.batch_files_days)


def put(bucket: Bucket, file_id: str, content: IO[bytes]) -> None:
    """Write a file's whole object, in parts where it is large. Raises as ``Bucket``."""
    content.seek(0)
    with translated(_key(file_id)):
        bucket.client.upload_fileobj(content, bucket.name, _key(file_id))


def fetch(bucket: Bucket, file_id: str) -> IO[bytes]:
    """A copy on this machine of what a file contains, open at its beginning. It is deleted when it is closed. Raises as
    ``Bucket``.
    """
    copy = TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        with translated(_key(file_id)):
            bucket.client.download_fileobj(bucket.name, _key(file_id), copy)
        copy.seek(0)
    except BaseException:
        copy.close()
        raise
    return copy


def discard(engine: Engine, file_id: str) -> None:
    """Delete a file that the tenant has never seen. The next cleanup removes it."""
    with unit_of_work(engine) as session:
        session.get_one(BatchFile, file_id).deleted_at = database_now(session)


def find(session: Session, *, tenant_id: str, file_id: str, param: str | None = None, lock: bool = False) -> BatchFile:
    """One of the tenant's files. ``lock`` keeps it until the transaction ends. Raises NotFound."""
    mine = _visible(tenant_id).where(BatchFile.id == file_id)
    found = session.exec(mine.with_for_update() if lock else mine).first() if file_id.isascii() else None
    if found is None:
        raise _missing(param)
    return found


def page(
    session: Session, *, tenant_id: str, purpose: Purpose | None, after: str | None, limit: int, oldest_first: bool
) -> OpenAIPage[FileView]:
    """A page of the tenant's files by the time of their creation."""
    mine, limit = _visible(tenant_id), min(limit, _PAGE_MAX)
    if purpose is not None:
        mine = mine.where(BatchFile.purpose == purpose)
    if after is not None:
        mine = mine.where(col(BatchFile.id) > after if oldest_first else col(BatchFile.id) < after)
    ordered = mine.order_by(col(BatchFile.id) if oldest_first else col(BatchFile.id).desc())
    return openai_page([view(row) for row in session.exec(ordered.limit(limit + 1))], limit)


def content(engine: Engine, bucket: Bucket, *, tenant_id: str, file_id: str) -> Iterator[bytes]:
    """The content of a file in pieces. Raises NotFound, also where it is deleted at this moment."""
    with unit_of_work(engine) as session:
        find(session, tenant_id=tenant_id, file_id=file_id)
    try:
        with translated(_key(file_id)):
            body = bucket.client.get_object(Bucket=bucket.name, Key=_key(file_id))["Body"]
    except ObjectMissing as error:
        raise _missing() from error
    return _pieces(body, file_id)


def delete(session: Session, principal: Principal, file_id: str) -> FileDeletion:
    """Delete a file at once; its object goes with the next cleanup. Raises NotFound, and Conflict for the input of a
    batch that has not ended.
    """
    tenant_id = principal.own_tenant_id
    row = find(session, tenant_id=tenant_id, file_id=file_id, lock=True)
    reader = select(BatchRow.id).where(
        BatchRow.tenant_id == tenant_id, BatchRow.input_file_id == row.id, col(BatchRow.ended_at).is_(None)
    )
    if (batch_id := session.exec(reader.limit(1)).first()) is not None:
        raise Conflict(
            f"The batch {batch_id} still reads this file. Cancel the batch, or wait until it has ended.",
            code="file_in_use",
            param="file_id",
        )
    row.deleted_at = database_now(session)
    audited(session, principal, "file.deleted", row.id)
    return FileDeletion(id=row.id)


def remove_unused(engine: Engine, bucket: Bucket, *, limit: int) -> bool:
    """Delete the objects, and then the rows, of files that are deleted, expired, or not complete after an hour. Returns
    whether there may be more.
    """
    with unit_of_work(engine) as session:
        now = database_now(session)
        unused = select(BatchFile.id).where(
            col(BatchFile.deleted_at).is_not(None)
            | (col(BatchFile.expires_at) < now)
            | (col(BatchFile.stored_at).is_(None) & (col(BatchFile.created_at) < now - _HALF_WAY_MAX))
        )
        file_ids = list(session.exec(unused.limit(limit)))
    if file_ids:
        bucket.delete([_key(file_id) for file_id in file_ids])
        with unit_of_work(engine) as session:
            session.execute(sa.delete(BatchFile).where(col(BatchFile.id).in_(file_ids)))
    return len(file_ids) == limit


def view(row: BatchFile) -> FileView:
    """The file as OpenAI's SDKs know it."""
    created_at, expires_at = int(row.created_at.timestamp()), int(row.expires_at.timestamp())
    return view_of(row, FileView, bytes=row.size_bytes, created_at=created_at, expires_at=expires_at)


def _pieces(body: Any, file_id: str) -> Iterator[bytes]:
    with contextlib.closing(body), translated(_key(file_id)):
        while piece := body.read(_CHUNK_BYTES):
            yield piece


def _key(file_id: str) -> str:
    return f"files/{file_id}"


def _missing(param: str | None = None) -> NotFound:
    return NotFound("The file does not exist, or not any more.", code="file_not_found", param=param)


def _visible(tenant_id: str) -> SelectOfScalar[BatchFile]:
    return select(BatchFile).where(
        BatchFile.tenant_id == tenant_id,
        col(BatchFile.stored_at).is_not(None),
        col(BatchFile.deleted_at).is_(None),
        col(BatchFile.expires_at) > sa.func.clock_timestamp(),
    )
