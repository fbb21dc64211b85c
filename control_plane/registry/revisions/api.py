"""A tenant's routes over revisions, and the admin's route over rank classes. A revision is announced, uploaded directly
to the object store, completed and then read.

``service`` and ``uploads`` implement the steps; their transactions and their calls to the store never overlap.
"""

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from redis import Redis
from sqlalchemy import Engine
from sqlmodel import Session

from adapters.settings import UploadSettings
from control_plane.auth.authenticate import Principal
from control_plane.fleet import service as fleet
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page, PageCursor, PageLimit
from control_plane.registry.revisions import rank_classes, refusal_audit
from control_plane.registry.revisions import service as revisions
from control_plane.registry.revisions.confirmation import confirmed
from control_plane.registry.revisions.uploads import Uploads, revision_id_of
from control_plane.registry.schemas import NewRevision, RankClassView, RevisionCreated, RevisionView
from control_plane.settings import WebSettings
from core.db import unit_of_work
from core.errors import AppError

_READ = {"scope": "adapters:read"}
_WRITE = {"scope": "adapters:write"}


class Revisions(Controller):
    """The revisions of one of the tenant's adapters."""

    path = "/adapters/{name:str}/revisions"
    tags = ("adapters",)

    @post(sync_to_thread=True, opt=_WRITE)
    def create_revision(
        self,
        name: FromPath[str],
        data: JSONBody[NewRevision],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        uploads: NamedDependency[Uploads],
        web: NamedDependency[WebSettings],
        upload: NamedDependency[UploadSettings],
        engine: NamedDependency[Engine],
    ) -> Response[RevisionCreated]:
        """Announce the files of a revision. The response has a presigned URL for each file, or for each part of a
        large one.
        """
        tenant_id = principal.own_tenant_id

        def announce(session: Session) -> RevisionCreated:
            revision = revisions.announce_revision(
                session, data, tenant_id=tenant_id, name=name, actor=principal.key_id, settings=web, upload=upload
            )
            return uploads.without_urls(revision)

        def again(session: Session, body: bytes) -> RevisionCreated:
            revision_id = revision_id_of(body)
            return uploads.without_urls(revisions.get(session, tenant_id=tenant_id, name=name, revision_id=revision_id))

        try:
            answer = idempotent.run(announce, replayed=again)
        except AppError as refusal:
            hourly_max = web.refusals_audited_per_hour_max
            refusal_audit.record_refusal(
                engine, refusal, tenant_id=tenant_id, adapter=name, actor=principal.key_id, hourly_max=hourly_max
            )
            raise
        # After the transaction: if the store fails now, the same request continues from here.
        return Response(uploads.with_all_urls(answer.content), status_code=answer.status_code, headers=answer.headers)

    @get(sync_to_thread=True, opt=_READ)
    def list_revisions(
        self,
        name: FromPath[str],
        engine: NamedDependency[Engine],
        redis: NamedDependency[Redis],
        principal: NamedDependency[Principal],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[RevisionView]:
        """List an adapter's revisions, newest first."""
        with unit_of_work(engine) as session:
            page = revisions.list_revisions(
                session, tenant_id=principal.own_tenant_id, name=name, cursor=cursor, limit=limit
            )
            return Page(data=confirmed(engine, redis, session, page.data), next_cursor=page.next_cursor)

    @get("/{revision_id:str}", sync_to_thread=True, opt=_READ)
    def get_revision(
        self,
        name: FromPath[str],
        revision_id: FromPath[str],
        engine: NamedDependency[Engine],
        redis: NamedDependency[Redis],
        principal: NamedDependency[Principal],
    ) -> RevisionView:
        """Get one revision, with its report once it is decided. It is `ready` when every gateway serves it."""
        with unit_of_work(engine) as session:
            view = revisions.get(session, tenant_id=principal.own_tenant_id, name=name, revision_id=revision_id)
            return confirmed(engine, redis, session, [view])[0]

    @get("/{revision_id:str}/uploads", sync_to_thread=True, opt=_WRITE)
    def resume_uploads(
        self,
        name: FromPath[str],
        revision_id: FromPath[str],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        uploads: NamedDependency[Uploads],
    ) -> RevisionCreated:
        """Resume an upload: get fresh URLs for the files and parts that are missing."""
        with unit_of_work(engine) as session:
            revision = revisions.get(session, tenant_id=principal.own_tenant_id, name=name, revision_id=revision_id)
        return uploads.with_missing_urls(uploads.without_urls(revision))

    @post("/{revision_id:str}/complete", sync_to_thread=True, opt=_WRITE, status_code=202)
    def complete_revision(
        self,
        name: FromPath[str],
        revision_id: FromPath[str],
        engine: NamedDependency[Engine],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        uploads: NamedDependency[Uploads],
    ) -> Response[RevisionView]:
        """Complete the upload of every file and part, and queue the revision for validation."""
        tenant_id = principal.own_tenant_id
        with unit_of_work(engine) as session:
            revision = revisions.get(session, tenant_id=tenant_id, name=name, revision_id=revision_id)
        if revision.status == "uploading":
            uploads.complete_uploads(revision.id)
        return idempotent.run(
            lambda session: revisions.complete(
                session, tenant_id=tenant_id, name=name, revision_id=revision_id, actor=principal.key_id
            ),
            status_code=202,
        )


class AdminRankClasses(Controller):
    """The rank classes of a base model."""

    path = "/base-models/{base_model:str}/rank-classes"
    tags = ("admin: base models",)

    @get(sync_to_thread=True)
    def list_rank_classes(
        self, base_model: FromPath[str], engine: NamedDependency[Engine], redis: NamedDependency[Redis]
    ) -> Page[RankClassView]:
        """List the rank classes: the cost of a slot in bytes and KV pages, the live replicas, and the number of
        adapters.
        """
        alive = fleet.statuses(redis)
        with unit_of_work(engine) as session:
            return Page(data=rank_classes.show(session, base_model, alive))
