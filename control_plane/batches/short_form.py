"""`POST /v1/batch`: a batch whose requests come with the call. It becomes a file and a batch like any other."""

from typing import Any

import msgspec
from litestar import Response
from msgspec.structs import replace
from sqlalchemy import Engine
from sqlmodel import Session

from adapters.object_store.s3 import Bucket
from billing.notifications import endpoints
from control_plane.auth.authenticate import Principal
from control_plane.batches import files, lines, service
from control_plane.batches.schemas import NewShortBatch, ShortBatchView
from control_plane.batches.upload_form import UploadedFile
from control_plane.idempotency.service import IdempotentRequest
from control_plane.notifications.rules import NotificationRules
from control_plane.settings import BatchSettings
from core.errors import AppError, InvalidRequest


def create(
    engine: Engine,
    bucket: Bucket,
    settings: BatchSettings,
    rules: NotificationRules,
    principal: Principal,
    new: NewShortBatch,
    idempotent: IdempotentRequest,
) -> Response[ShortBatchView]:
    """Check the requests, store them as a file, and create the batch. ``rules`` say which callbacks this installation
    allows. A refusal leaves nothing. Raises AppError.
    """
    if new.callback_url is not None:
        _check_callback(rules, new.callback_url, tenant_id=principal.own_tenant_id)
    uploaded = UploadedFile()
    with uploaded.content:
        _write(uploaded, new, settings)
        file_id = files.store(engine, bucket, settings, principal, uploaded, own=False).id
    used = False

    def effect(session: Session) -> ShortBatchView:
        nonlocal used
        created = _create(session, settings, rules, principal, new, file_id)
        used = True
        return created

    try:
        return idempotent.run(effect, stored=lambda made: replace(made, callback_secret=None), status_code=200)
    finally:
        if not used:  # refused, or answered from the store
            files.discard(engine, file_id)


def _check_callback(rules: NotificationRules, url: str, *, tenant_id: str) -> None:
    """Look the host up, outside of any transaction. Raises InvalidRequest or Unprocessable."""
    try:
        rules.check("webhook", url, tenant_id=tenant_id)
    except AppError as error:
        message = error.message.removeprefix("address: ")
        raise type(error)(f"callback_url: {message}", code=error.code, param="callback_url") from error


def _write(uploaded: UploadedFile, new: NewShortBatch, settings: BatchSettings) -> None:
    """The lines of the file. Raises InvalidRequest for the first bad request."""
    uploaded.filename, uploaded.purpose = "requests.jsonl", b"batch"
    for number, body in enumerate(new.requests, 1):
        line: dict[str, Any] = {"custom_id": f"request-{number}", "url": new.endpoint, "body": body}
        uploaded.size_bytes += uploaded.content.write(msgspec.json.encode(line) + b"\n")
    uploaded.content.seek(0)
    if problems := lines.check(uploaded.content, new.endpoint, settings).problems:
        first = problems[0]
        field = (first.param or "body").removeprefix("body").removeprefix(".")
        param = f"requests[{(first.line or 1) - 1}]" + (f".{field}" if field else "")
        reason = first.message.partition(": ")[2].removeprefix(f"{first.param}: ") or first.message
        raise InvalidRequest(f"{param}: {reason}", code=first.code, param=param)


def _create(
    session: Session,
    settings: BatchSettings,
    rules: NotificationRules,
    principal: Principal,
    new: NewShortBatch,
    file_id: str,
) -> ShortBatchView:
    tenant_id, secret = principal.own_tenant_id, None
    row = service.create(
        session, settings, principal, input_file_id=file_id, endpoint=new.endpoint, priority=new.priority
    )
    row.total = len(new.requests)
    if new.callback_url is not None:
        row.callback_endpoint_id, secret = endpoints.for_callback(
            session,
            rules.box,
            tenant_id=tenant_id,
            url=new.callback_url,
            in_use=service.open_callbacks(session, tenant_id),
            callbacks_max=settings.batch_open_max,
        )
    return ShortBatchView(
        batch_id=row.id, estimated_completion=service.estimated_end(session, row), callback_secret=secret
    )
