"""Shows a revocation: its progress, one receipt for each replica, and the awaited replicas. Read-only."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from sqlmodel import Session, col, select

from control_plane.paging import Page, page_of
from control_plane.registry.models import Adapter, AdapterRevocation
from control_plane.registry.revocations import receipts
from core import clock, fields
from core.contracts.replicas import ReplicaStatus
from core.errors import NotFound
from core.fields import about
from core.struct_types import view_of

State = Literal["stopping", "draining", "unloaded", "quarantined", "removed", "lifted"]


class ReceiptView(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's receipt, for one start of its engine (``boot_id``). The three lists say where it still found the
    adapter. In the state ``removed`` only ``on_disk`` may have entries, and only for admins: files that an identical
    revision of another adapter needs. A tenant does not learn that such a revision exists.
    """

    replica: Annotated[str, fields.REPLICA]
    boot_id: Annotated[str, fields.BOOT_ID]
    state: Annotated[Literal["draining", "removed"], about("State of the replica's copies.")]
    drained_requests: Annotated[int, about("Requests that the replica let finish.")]
    aborted_requests: Annotated[int, about("Requests that the replica ended early.")]
    in_slots: Annotated[list[str], about("Engine names that the replica still held in slots.")]
    in_memory: Annotated[list[str], about("Engine names that the replica still held in memory.")]
    on_disk: Annotated[list[str], about("Engine names whose files the replica still held.")]
    at: Annotated[datetime, about("When the receipt was written.")]


class RevocationView(msgspec.Struct, frozen=True, kw_only=True):
    """A revocation: its reason and progress. ``stopping``: no replica has answered yet; ``draining``: some have;
    ``unloaded``: no replica holds it; ``quarantined``: only the object store does; ``removed``: no copy is left;
    ``lifted``: it may be served again. ``awaited_replicas`` is null where replicas were not read.
    """

    id: Annotated[str, fields.ID]
    tenant_id: Annotated[str, fields.TENANT_ID]
    adapter_id: Annotated[str, fields.ADAPTER_ID]
    adapter: Annotated[str, fields.ADAPTER]
    base_model: Annotated[str, fields.BASE_MODEL]
    reason: Annotated[Literal["deleted", "suspended"], about("Why it was revoked.")]
    state: Annotated[State, about("State of the revocation.")]
    engine_names: Annotated[list[str], about("The names under which engines load the revoked revisions.")]
    receipts: Annotated[list[ReceiptView], about("What replicas answered.")]
    awaited_replicas: Annotated[
        list[str] | None, about("Ids of the replicas that have not unloaded it; null where replicas were not read.")
    ]
    created_at: Annotated[datetime, fields.CREATED_AT]
    unloaded_at: Annotated[datetime | None, about("When no replica held it any more; null before.")]
    removed_at: Annotated[datetime | None, about("When the last copy was removed; null before.")]
    lifted_at: Annotated[datetime | None, about("When it was lifted; null before.")]


def get(
    session: Session, revocation_id: str, *, tenant_id: str | None, alive: Sequence[ReplicaStatus]
) -> RevocationView:
    """One revocation, of this tenant unless ``tenant_id`` is None. Raises NotFound, also for another tenant's."""
    row = session.get(AdapterRevocation, revocation_id)
    if row is None or tenant_id not in (None, row.tenant_id):
        raise NotFound("Revocation not found.", code="revocation_not_found")
    return view(session, row, alive, include_shared_files=tenant_id is None)


def list_revocations(
    session: Session, *, tenant_id: str | None, alive: Sequence[ReplicaStatus], cursor: str | None, limit: int
) -> Page[RevocationView]:
    """The tenant's revocations, or all tenants' with None, newest first."""
    rows = select(AdapterRevocation)
    if tenant_id is not None:
        rows = rows.where(AdapterRevocation.tenant_id == tenant_id)
    return page_of(
        session,
        rows,
        col(AdapterRevocation.id),
        lambda row: view(session, row, alive, include_shared_files=tenant_id is None),
        cursor=cursor,
        limit=limit,
    )


def view(
    session: Session,
    row: AdapterRevocation,
    alive: Sequence[ReplicaStatus] | None,
    *,
    include_shared_files: bool = False,
) -> RevocationView:
    """The view of a row. ``alive`` are the live replicas, None where they were not read. ``include_shared_files`` is
    for admins: they may see files that another adapter needs too.
    """
    adapter = session.get_one(Adapter, row.adapter_id)
    return view_of(
        row,
        RevocationView,
        adapter=adapter.name,
        base_model=adapter.base_model,
        state=state_of(row),
        receipts=[
            _receipt(row.receipts[replica], include_shared_files=include_shared_files)
            for replica in sorted(row.receipts)
        ],
        awaited_replicas=None if alive is None else _awaited(row, adapter.base_model, alive),
    )


def state_of(row: AdapterRevocation) -> State:
    """The progress of a revocation. Pure."""
    if row.lifted_at:
        return "lifted"
    if row.removed_at:
        return "removed"
    if row.unloaded_at:
        return "quarantined" if row.reason == "deleted" else "unloaded"
    return "draining" if row.receipts else "stopping"


def _awaited(row: AdapterRevocation, base_model: str, alive: Sequence[ReplicaStatus]) -> list[str]:
    if not row.engine_names or row.lifted_at or row.forgotten_at:
        return []
    return receipts.awaited_replicas(base_model, row.receipts, alive)


def _receipt(receipt: Mapping[str, Any], *, include_shared_files: bool) -> ReceiptView:
    return ReceiptView(
        replica=receipt["replica_id"],
        boot_id=receipt["boot_id"],
        state=receipt["state"],
        drained_requests=receipt["drained_requests"],
        aborted_requests=receipt["aborted_requests"],
        in_slots=receipt["in_slots"],
        in_memory=receipt["in_memory"],
        on_disk=receipt["on_disk"] if include_shared_files or receipt["state"] != "removed" else [],
        at=clock.from_ms(receipt["at_ms"]),
    )
