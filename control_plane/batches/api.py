"""The routes of files and batches at the paths where OpenAI's clients look for them, and an admin's of the pause."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from litestar import Controller, Request, Response, delete, get, post, put
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, PathParameter, QueryParameter
from litestar.response import Stream
from sqlalchemy import Engine
from sqlmodel import Session

from adapters.object_store.s3 import Bucket
from control_plane.auth.authenticate import Principal
from control_plane.batches import files, service, short_form, upload_form
from control_plane.batches.schemas import (
    BatchView,
    FileDeletion,
    FileView,
    NewBatch,
    NewPause,
    NewShortBatch,
    OpenAIPage,
    PauseView,
    Purpose,
    ShortBatchView,
)
from control_plane.idempotency.service import IdempotentRequest
from control_plane.notifications.rules import NotificationRules
from control_plane.settings import BatchSettings
from core.db import unit_of_work
from core.errors import Unavailable

_OPT = {"scope": "inference"}

FileId = Annotated[str, PathParameter(max_length=64, description="Id of the file.")]
BatchId = Annotated[str, PathParameter(max_length=64, description="Id of the batch.")]
After = Annotated[str | None, QueryParameter(max_length=64, description="Id of the last item of the previous page.")]
FileLimit = Annotated[
    int, QueryParameter(ge=1, le=10_000, description="Largest number of items to return, of at most 1,000.")
]
BatchLimit = Annotated[int, QueryParameter(ge=1, le=100, description="Largest number of items to return.")]
Order = Annotated[Literal["asc", "desc"], QueryParameter(description="By the time of creation.")]
OfPurpose = Annotated[Purpose | None, QueryParameter(description="Only files of this purpose.")]


class UploadSlots:
    """The files that one web process may receive at once, of one tenant at most half of them. Threads may share it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: Counter[str] = Counter()
        self._guard = threading.Lock()

    @contextmanager
    def of(self, tenant_id: str) -> Iterator[None]:
        """A slot while the block runs. Raises Unavailable."""
        with self._guard:
            if self._running.total() >= self._most or self._running[tenant_id] >= (self._most + 1) // 2:
                raise Unavailable(
                    "Too many files arrive at once. Try again shortly.", code="overloaded", retry_after_s=5
                )
            self._running[tenant_id] += 1
        try:
            yield
        finally:
            with self._guard:
                self._running[tenant_id] -= 1
                self._running += Counter()  # without tenants that have none


class Files(Controller):
    """The calling tenant's files, in OpenAI's format."""

    path = "/files"
    tags = ("batches",)
    opt = _OPT

    @post(status_code=200, request_max_body_size=None)
    async def create_file(
        self,
        request: Request[Any, Any, State],
        engine: NamedDependency[Engine],
        objects: NamedDependency[Bucket],
        batch_settings: NamedDependency[BatchSettings],
        upload_slots: NamedDependency[UploadSlots],
        principal: NamedDependency[Principal],
    ) -> FileView:
        """Upload an input file, as multipart/form-data with the fields file and purpose (batch)."""
        with upload_slots.of(principal.own_tenant_id):
            uploaded = await upload_form.receive(request, bytes_max=batch_settings.batch_file_bytes_max)
            with uploaded.content:
                return await asyncio.to_thread(files.store, engine, objects, batch_settings, principal, uploaded)

    @get(sync_to_thread=True)
    def list_files(
        self,
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        purpose: OfPurpose = None,
        after: After = None,
        limit: FileLimit = 100,
        order: Order = "desc",
    ) -> OpenAIPage[FileView]:
        """List the tenant's files."""
        with unit_of_work(engine) as session:
            return files.page(
                session,
                tenant_id=principal.own_tenant_id,
                purpose=purpose,
                after=after,
                limit=limit,
                oldest_first=order == "asc",
            )

    @get("/{file_id:str}", sync_to_thread=True)
    def get_file(
        self, file_id: FileId, engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> FileView:
        """Get one file."""
        with unit_of_work(engine) as session:
            return files.view(files.find(session, tenant_id=principal.own_tenant_id, file_id=file_id))

    @get("/{file_id:str}/content", media_type="application/octet-stream", sync_to_thread=True)
    def get_file_content(
        self,
        file_id: FileId,
        engine: NamedDependency[Engine],
        objects: NamedDependency[Bucket],
        principal: NamedDependency[Principal],
    ) -> Stream:
        """Get what a file contains."""
        pieces = files.content(engine, objects, tenant_id=principal.own_tenant_id, file_id=file_id)
        # Without its length, so that no client takes it for complete, and asks on, before the server does.
        return Stream(pieces, media_type="application/octet-stream")

    @delete("/{file_id:str}", status_code=200, sync_to_thread=True)
    def delete_file(
        self, file_id: FileId, engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> FileDeletion:
        """Delete a file. The input of a batch that has not ended is refused."""
        with unit_of_work(engine) as session:
            return files.delete(session, principal, file_id)


class Batches(Controller):
    """The calling tenant's batches, in OpenAI's format."""

    path = "/batches"
    tags = ("batches",)
    opt = _OPT

    @post(status_code=200, sync_to_thread=True)
    def create_batch(
        self,
        data: JSONBody[NewBatch],
        batch_settings: NamedDependency[BatchSettings],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[BatchView]:
        """Create a batch over an uploaded file. Its lines are checked first, and run only if all of them are good."""

        def create(session: Session) -> BatchView:
            row = service.create(
                session,
                batch_settings,
                principal,
                input_file_id=data.input_file_id,
                endpoint=data.endpoint,
                labels=data.metadata,
            )
            return service.view(session, row)

        return idempotent.run(create, status_code=200)

    @get(sync_to_thread=True)
    def list_batches(
        self,
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        after: After = None,
        limit: BatchLimit = 20,
    ) -> OpenAIPage[BatchView]:
        """List the tenant's batches, newest first."""
        with unit_of_work(engine) as session:
            return service.page(session, tenant_id=principal.own_tenant_id, after=after, limit=limit)

    @get("/{batch_id:str}", sync_to_thread=True)
    def get_batch(
        self, batch_id: BatchId, engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> BatchView:
        """Get one batch, with how far it has got and when it should end."""
        with unit_of_work(engine) as session:
            return service.get(session, tenant_id=principal.own_tenant_id, batch_id=batch_id)

    @post("/{batch_id:str}/cancel", status_code=200, sync_to_thread=True)
    def cancel_batch(
        self, batch_id: BatchId, engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> BatchView:
        """Send no further line. Lines that run end first; the answers so far are kept and charged."""
        with unit_of_work(engine) as session:
            return service.cancel(session, principal, batch_id)


def short_batch(body_bytes_max: int) -> HTTPRouteHandler:
    """The route of the short form. It holds all requests, so its body may be larger than others."""

    @post(
        "/batch",
        status_code=200,
        request_max_body_size=body_bytes_max,
        opt=_OPT,
        tags=["batches"],
        sync_to_thread=True,
    )
    def create_short_batch(
        data: JSONBody[NewShortBatch],
        engine: NamedDependency[Engine],
        objects: NamedDependency[Bucket],
        batch_settings: NamedDependency[BatchSettings],
        notification_rules: NamedDependency[NotificationRules],
        upload_slots: NamedDependency[UploadSlots],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[ShortBatchView]:
        """Create a batch of these requests. The callback is signed, and gets what the batch has become."""
        with upload_slots.of(principal.own_tenant_id):
            return short_form.create(engine, objects, batch_settings, notification_rules, principal, data, idempotent)

    return create_short_batch


class AdminBatches(Controller):
    """Whether the lines of batches are sent."""

    path = "/batches/pause"
    tags = ("admin: batches",)

    @get(sync_to_thread=True)
    def get_batch_pause(self, engine: NamedDependency[Engine]) -> PauseView:
        """Get whether all batches pause, and why."""
        with unit_of_work(engine) as session:
            return service.read_pause(session)

    @put(sync_to_thread=True)
    def pause_batches(
        self, data: JSONBody[NewPause], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> PauseView:
        """Pause all batches of all tenants. Lines that run end; other requests are not affected."""
        with unit_of_work(engine) as session:
            return service.pause(session, principal, data.reason)

    @delete(status_code=200, sync_to_thread=True)
    def resume_batches(self, engine: NamedDependency[Engine], principal: NamedDependency[Principal]) -> PauseView:
        """Let all batches go on. Idempotent."""
        with unit_of_work(engine) as session:
            return service.resume(session, principal)
