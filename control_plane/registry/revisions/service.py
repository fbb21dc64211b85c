"""Revisions of an adapter from announcement to the validation queue: announced, uploaded by the tenant, completed,
read.

This module makes no S3 call: signing a URL needs none, and ``uploads`` has checked the objects before a revision is
completed.
"""

from sqlalchemy import func, update
from sqlmodel import Session, col, select

from adapters.object_store.multipart import part_bytes_for
from adapters.settings import UploadSettings
from control_plane.audit import service as audit
from control_plane.paging import Page, page_of
from control_plane.registry.adapters import service as adapters
from control_plane.registry.models import Adapter, Revision, UploadFile
from control_plane.registry.revisions import upload_rules
from control_plane.registry.revisions.upload_rules import FileUpload
from control_plane.registry.schemas import NewRevision, ReportView, RevisionView
from control_plane.settings import WebSettings
from control_plane.tenants import service as tenants
from core import clock
from core.errors import Conflict, Forbidden, NotFound
from core.struct_types import view_of


def announce_revision(
    session: Session,
    new: NewRevision,
    *,
    tenant_id: str,
    name: str,
    actor: str,
    settings: WebSettings,
    upload: UploadSettings,
) -> RevisionView:
    """Create a revision that waits for its files. Raises NotFound for the adapter, an error that names the invalid file
    or limit, Conflict above the limit of open uploads, and Forbidden above the limit of revisions.
    """
    tenant = tenants.lock(session, tenant_id)
    adapter = adapters.find(session, tenant_id=tenant_id, name=name)
    limits = upload_rules.upload_limits(tenant.limits, tenant.plan)
    upload_rules.require_allowed(new.files, files_max=settings.upload_files_max, limits=limits)
    if not adapters.has_ready_revision(session, adapter) and (full := adapters.full_plan(session, tenant_id)):
        raise Forbidden(f"adapters: {full}", code="adapter_quota_exceeded")
    _require_below_limits(settings, session, adapter)
    row = Revision(tenant_id=tenant_id, adapter_id=adapter.id, size_bytes=sum(file.size_bytes for file in new.files))
    session.add(row)
    session.flush()
    session.add_all(
        UploadFile(
            revision_id=row.id,
            path=file.path,
            size_bytes=file.size_bytes,
            sha256=file.sha256,
            part_bytes=part_bytes_for(
                file.size_bytes, part_bytes=upload.upload_part_bytes, parts_max=upload.upload_parts_max
            ),
        )
        for file in new.files
    )
    audit.record(session, actor=actor, action="revision.announced", target=row.id, tenant_id=tenant_id)
    return _view(row, name)


def get(session: Session, *, tenant_id: str, name: str, revision_id: str) -> RevisionView:
    """One revision of one of the tenant's adapters. Raises NotFound."""
    return _view(_find(session, tenant_id=tenant_id, name=name, revision_id=revision_id), name)


def list_revisions(
    session: Session, *, tenant_id: str, name: str, cursor: str | None, limit: int
) -> Page[RevisionView]:
    """An adapter's revisions, newest first."""
    adapter = adapters.find(session, tenant_id=tenant_id, name=name)
    mine = select(Revision).where(Revision.tenant_id == tenant_id, Revision.adapter_id == adapter.id)
    return page_of(session, mine, col(Revision.id), lambda row: _view(row, name), cursor=cursor, limit=limit)


def announced_files(session: Session, revision_id: str) -> list[FileUpload]:
    """The announced files of a revision, ordered by path. The caller has checked that the tenant owns the revision."""
    rows = session.exec(select(UploadFile).where(UploadFile.revision_id == revision_id).order_by(col(UploadFile.path)))
    return [view_of(row, FileUpload) for row in rows]


def store_upload_id(
    session: Session, revision_id: str, path: str, upload_id: str, *, instead_of: str | None
) -> str | None:
    """Store ``upload_id`` as the file's open multipart upload, if the stored one is still ``instead_of``. Returns the
    stored id, or None when the revision has left the state uploading.
    """
    row = session.get_one(Revision, revision_id, with_for_update=True)
    if row.status != "uploading":
        return None
    file = session.get_one(UploadFile, (revision_id, path))
    if file.s3_upload_id == instead_of:
        file.s3_upload_id = upload_id
        session.add(file)
    return file.s3_upload_id


def complete(session: Session, *, tenant_id: str, name: str, revision_id: str, actor: str) -> RevisionView:
    """Queue the revision for validation. Idempotent: a revision that has left the state uploading is returned
    unchanged. Raises NotFound.
    """
    row = _find(session, tenant_id=tenant_id, name=name, revision_id=revision_id, lock=True)
    if row.status == "uploading":
        row.status = "validating"
        row.completed_at = clock.now()
        session.add(row)
        session.execute(update(UploadFile).where(col(UploadFile.revision_id) == row.id).values(s3_upload_id=None))
        audit.record(session, actor=actor, action="revision.completed", target=row.id, tenant_id=tenant_id)
    return _view(row, name)


def _find(session: Session, *, tenant_id: str, name: str, revision_id: str, lock: bool = False) -> Revision:
    adapter = adapters.find(session, tenant_id=tenant_id, name=name)
    mine = select(Revision).where(
        Revision.id == revision_id, Revision.tenant_id == tenant_id, Revision.adapter_id == adapter.id
    )
    row = session.exec(mine.with_for_update() if lock else mine).first()
    if row is None:
        raise NotFound("Revision not found.", code="revision_not_found")
    return row


def _require_below_limits(settings: WebSettings, session: Session, adapter: Adapter) -> None:
    counted = select(func.count()).select_from(Revision).where(col(Revision.tenant_id) == adapter.tenant_id)
    open_now = session.exec(counted.where(col(Revision.status).in_(("uploading", "validating")))).one()
    if open_now >= settings.uploads_open_max:
        raise Conflict(
            f"revisions: {open_now} uploads are open, the limit is {settings.uploads_open_max}. Complete them, or wait "
            "until they expire.",
            code="too_many_open_uploads",
        )
    if session.exec(counted.where(col(Revision.adapter_id) == adapter.id)).one() >= settings.revisions_max:
        raise Forbidden(
            f"revisions: an adapter may have at most {settings.revisions_max}. Create a new adapter.",
            code="revision_quota_exceeded",
        )


def _view(row: Revision, name: str) -> RevisionView:
    checked = row.checked_digest is not None
    return view_of(
        row,
        RevisionView,
        adapter=name,
        stage=("canary" if checked else "checking") if row.status == "validating" else None,
        sha256=row.digest,
        report=_report(row),
    )


def _report(row: Revision) -> ReportView | None:
    """The report of the verdict, with the canary run, or with a note that says what the run waits for."""
    if row.report is None:
        return None
    canary = row.canary or {}
    if waiting := canary.get("waiting"):
        return ReportView(problems=row.report["problems"], notes=[*row.report["notes"], waiting])
    return ReportView(problems=row.report["problems"], notes=row.report["notes"], canary=canary or None)
