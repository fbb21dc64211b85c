"""Rank classes: the pools of one base model by their largest rank, the revisions of each, and the cost of a slot.

A slot takes memory for its pool's largest rank even when it is empty, so a revision belongs to the smallest class that
fits it. The gateway decides which replica serves a request.
"""

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import func, update
from sqlmodel import Session, col, select

from adapters.base_model_spec import BaseModelSpec, kv_page_bytes, slot_bytes
from control_plane.publishing.outbox import publish_change
from control_plane.registry import base_models
from control_plane.registry.adapters import pins
from control_plane.registry.adapters import service as adapters
from control_plane.registry.models import Adapter, Revision
from control_plane.registry.schemas import RankClassView
from core.contracts.replicas import ReplicaStatus
from core.errors import NotFound
from core.rank_classes import class_for


def reclassify(session: Session, base_model: str) -> None:
    """Move the base model's revisions to the smallest of its current classes that fits. A revision whose rank no class
    serves has none. Adapters with moved revisions are published again, with their pins.
    """
    classes = base_models.spec_of(session, base_model).classes
    of_base = select(Adapter.id).where(Adapter.base_model == base_model)
    mine = col(Revision.adapter_id).in_(of_base)
    moved: set[str] = set()
    for rank in session.exec(select(Revision.rank).where(mine, col(Revision.rank).is_not(None)).distinct()).all():
        assert rank is not None, "the query excludes revisions without a rank"
        now = class_for(rank, classes)
        change = update(Revision).where(
            mine, col(Revision.rank) == rank, col(Revision.rank_class).is_distinct_from(now)
        )
        changed = change.values(rank_class=now).returning(col(Revision.adapter_id))
        moved.update(session.execute(changed).scalars())
    live = select(Adapter).where(col(Adapter.id).in_(moved), col(Adapter.deleted_at).is_(None))
    for adapter in session.exec(live).all():
        publish_change(session, "adapters", adapters.field_of(adapter))
        pins.refresh(session, adapter)


def show(session: Session, base_model: str, alive: Sequence[ReplicaStatus]) -> list[RankClassView]:
    """The cost of a slot of each class, the live replicas of its pool, and the number of its adapters. Raises NotFound
    for a base model that is not registered.
    """
    if not base_models.exists(session, base_model):
        raise NotFound(
            "Base model not found. GET /api/v1/admin/base-models lists the base models.",
            code="base_model_not_found",
        )
    adapters_of = adapters_by_class(session, base_model)
    pool = [status for status in alive if status.base_model == base_model]
    return describe(base_models.spec_of(session, base_model), pool, adapters_of)


def adapters_by_class(session: Session, base_model: str) -> dict[int, int]:
    """The number of adapters with a ready revision in each rank class of a base model that has any."""
    placed = (
        select(Revision.rank_class, func.count(func.distinct(Revision.adapter_id)))
        .join(Adapter, col(Adapter.id) == Revision.adapter_id)
        .where(Adapter.base_model == base_model, col(Adapter.deleted_at).is_(None), Revision.status == "ready")
        .group_by(col(Revision.rank_class))
    )
    return {rank_class: number for rank_class, number in session.exec(placed) if rank_class is not None}


def describe(spec: BaseModelSpec, pool: Sequence[ReplicaStatus], adapters_of: dict[int, int]) -> list[RankClassView]:
    """One view for each class, ascending, including unregistered ranks that replicas were started with. Pure."""
    replicas, slots = Counter[int](), Counter[int]()
    for status in pool:
        replicas[status.rank_max] += 1
        slots[status.rank_max] += status.slots
    page_bytes = kv_page_bytes(spec)
    return [
        RankClassView(
            rank=rank,
            registered=rank in spec.classes,
            slot_bytes=slot_bytes(spec, rank),
            kv_pages_per_slot=-(-slot_bytes(spec, rank) // page_bytes) if page_bytes else None,
            replicas=replicas[rank],
            slots=slots[rank],
            slots_bytes=slot_bytes(spec, rank) * slots[rank],
            kv_pages_of_slots=-(-slot_bytes(spec, rank) * slots[rank] // page_bytes) if page_bytes else None,
            adapters=adapters_of.get(rank, 0),
        )
        for rank in sorted({*spec.classes, *replicas})
    ]
