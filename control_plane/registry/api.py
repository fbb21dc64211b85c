"""Routes of the registry: an admin's over base models, and a tenant's over its adapters and their revisions."""

from litestar import Controller, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine
from sqlmodel import Session

from adapters.settings import UploadSettings
from adapters.upload_store import UploadStore, upload_key
from control_plane.api_keys.authenticate import Principal
from control_plane.idempotency.service import Once
from control_plane.paging import Page, PageCursor, PageLimit
from control_plane.registry import adapters, base_models, revisions
from control_plane.registry import uploads as upload_urls
from control_plane.registry.schemas import (
    AdapterView,
    BaseModelView,
    NewAdapter,
    NewBaseModel,
    NewRevision,
    RevisionCreated,
    RevisionView,
)
from control_plane.settings import WebSettings
from core.db import unit_of_work

_READ = {"scope": "adapters:read"}
_WRITE = {"scope": "adapters:write"}


def admin_base_models(body_bytes_max: int) -> type[Controller]:
    """The admin's routes over base models; a spec carries a tokenizer, so its body may be larger than others."""

    class AdminBaseModels(Controller):
        """What adapters are made for."""

        path = "/base-models"
        tags = ("admin: base models",)

        @post(sync_to_thread=True, request_max_body_size=body_bytes_max)
        def register_base_model(
            self, data: JSONBody[NewBaseModel], once: NamedDependency[Once], principal: NamedDependency[Principal]
        ) -> Response[BaseModelView]:
            """Register a base model. The same spec again changes nothing; another under its id is refused."""
            return once.run(lambda session: base_models.register(session, data, actor=principal.key_id))

        @get(sync_to_thread=True)
        def list_base_models(
            self, engine: NamedDependency[Engine], limit: PageLimit = 50, cursor: PageCursor = None
        ) -> Page[BaseModelView]:
            """Every base model."""
            with unit_of_work(engine) as session:
                return base_models.list_base_models(session, cursor=cursor, limit=limit)

    return AdminBaseModels


class Adapters(Controller):
    """The adapters of the tenant that is calling."""

    path = "/adapters"
    tags = ("adapters",)

    @post(sync_to_thread=True, opt=_WRITE)
    def create_adapter(
        self, data: JSONBody[NewAdapter], once: NamedDependency[Once], principal: NamedDependency[Principal]
    ) -> Response[AdapterView]:
        """A name for a fine-tune of a base model; its weights come as revisions."""
        return once.run(
            lambda session: adapters.create(session, data, tenant_id=principal.own_tenant_id, actor=principal.key_id)
        )

    @get(sync_to_thread=True, opt=_READ)
    def list_adapters(
        self,
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[AdapterView]:
        """The tenant's adapters, newest first."""
        with unit_of_work(engine) as session:
            return adapters.list_adapters(session, tenant_id=principal.own_tenant_id, cursor=cursor, limit=limit)

    @get("/{name:str}", sync_to_thread=True, opt=_READ)
    def get_adapter(
        self, name: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> AdapterView:
        """One adapter."""
        with unit_of_work(engine) as session:
            return adapters.get(session, tenant_id=principal.own_tenant_id, name=name)

    @delete("/{name:str}", sync_to_thread=True, opt=_WRITE)
    def delete_adapter(
        self, name: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> None:
        """Stop serving an adapter and free its name. Requests in work finish; its usage stays on record."""
        with unit_of_work(engine) as session:
            adapters.delete(session, tenant_id=principal.own_tenant_id, name=name, actor=principal.key_id)


class Revisions(Controller):
    """The revisions of one of the tenant's adapters."""

    path = "/adapters/{name:str}/revisions"
    tags = ("adapters",)

    @post(sync_to_thread=True, opt=_WRITE)
    def create_revision(
        self,
        name: FromPath[str],
        data: JSONBody[NewRevision],
        once: NamedDependency[Once],
        principal: NamedDependency[Principal],
        uploads: NamedDependency[UploadStore],
        web: NamedDependency[WebSettings],
        upload: NamedDependency[UploadSettings],
    ) -> Response[RevisionCreated]:
        """Announce the files of a revision; the answer says where to PUT each."""
        tenant_id = principal.own_tenant_id

        def announce(session: Session) -> RevisionCreated:
            return signed(
                revisions.announce_revision(
                    session, data, tenant_id=tenant_id, name=name, actor=principal.key_id, settings=web
                )
            )

        def renew(session: Session, body: bytes) -> RevisionCreated:
            revision_id = upload_urls.revision_of(body)
            return signed(revisions.get(session, tenant_id=tenant_id, name=name, revision_id=revision_id))

        def signed(revision: RevisionView) -> RevisionCreated:
            return upload_urls.sign(uploads, revision, data.files, lifetime_s=upload.upload_url_expires_s)

        return once.run(announce, stored=upload_urls.unsigned, renewed=renew)

    @get(sync_to_thread=True, opt=_READ)
    def list_revisions(
        self,
        name: FromPath[str],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[RevisionView]:
        """An adapter's revisions, newest first."""
        with unit_of_work(engine) as session:
            return revisions.list_revisions(
                session, tenant_id=principal.own_tenant_id, name=name, cursor=cursor, limit=limit
            )

    @get("/{revision_id:str}", sync_to_thread=True, opt=_READ)
    def get_revision(
        self,
        name: FromPath[str],
        revision_id: FromPath[str],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
    ) -> RevisionView:
        """One revision, with its report once it is decided."""
        with unit_of_work(engine) as session:
            return revisions.get(session, tenant_id=principal.own_tenant_id, name=name, revision_id=revision_id)

    @post("/{revision_id:str}/complete", sync_to_thread=True, opt=_WRITE, status_code=202)
    def complete_revision(
        self,
        name: FromPath[str],
        revision_id: FromPath[str],
        engine: NamedDependency[Engine],
        once: NamedDependency[Once],
        principal: NamedDependency[Principal],
        uploads: NamedDependency[UploadStore],
    ) -> Response[RevisionView]:
        """Say that every file is uploaded, and queue the revision for validation."""
        tenant_id = principal.own_tenant_id
        with unit_of_work(engine) as session:
            revision = revisions.get(session, tenant_id=tenant_id, name=name, revision_id=revision_id)
            files = revisions.announced_files(session, revision.id)
        if revision.status == "uploading":
            missing = revisions.missing_of(files, (uploads.head(upload_key(revision.id, file.path)) for file in files))
            if missing is not None:
                raise missing
        return once.run(
            lambda session: revisions.complete(
                session, tenant_id=tenant_id, name=name, revision_id=revision_id, actor=principal.key_id
            ),
            status_code=202,
        )
