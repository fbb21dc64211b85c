"""Drafts of plan versions: they may change until they are published, and can be published only on top of the version
that they were written for, so that no admin overwrites what another one has published meanwhile.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import msgspec
from sqlmodel import Session, col, select

from billing.prices import card as price_card
from billing.prices.card import PriceCard
from control_plane.audit import service as audit
from control_plane.paging import Page, page_of
from control_plane.plans import service
from control_plane.plans.models import PlanDraft
from control_plane.plans.schemas import (
    DraftPublication,
    LimitsBody,
    NewPlanDraft,
    NewPlanVersion,
    PlanDraftView,
    PublishedVersion,
)
from core.errors import Conflict, NotFound
from core.struct_types import view_of


def create(
    session: Session, plan_id: str, new: NewPlanDraft, *, base_models: Collection[str], actor: str
) -> PlanDraftView:
    """Write a draft on top of ``base_version``, or of the newest version. Raises NotFound, InvalidRequest for a wrong
    card, and Conflict when ``base_version`` is not the newest.
    """
    price_card.check(new.prices, base_models=base_models)
    newest = service.newest_number(session, plan_id)
    service.require_newest(new.base_version, newest)
    draft = PlanDraft(
        plan_id=plan_id,
        base_version=newest,
        limits=msgspec.structs.asdict(new.limits),
        prices=msgspec.to_builtins(new.prices),
        created_by=actor,
    )
    session.add(draft)
    session.flush()
    audit.record(session, actor=actor, action="plan.draft_created", target=plan_id, details={"draft": draft.id})
    return view_of(draft, PlanDraftView)


def change(
    session: Session, plan_id: str, draft_id: str, new: NewPlanDraft, *, base_models: Collection[str], actor: str
) -> PlanDraftView:
    """Replace a draft, which is then on top of ``base_version``, or of the newest version. Raises as ``create`` does,
    and Conflict for a published draft.
    """
    price_card.check(new.prices, base_models=base_models)
    draft = _unpublished(session, plan_id, draft_id)
    newest = service.newest_number(session, plan_id)
    service.require_newest(new.base_version, newest)
    draft.base_version = newest
    draft.limits = msgspec.structs.asdict(new.limits)
    draft.prices = msgspec.to_builtins(new.prices)
    session.add(draft)
    audit.record(session, actor=actor, action="plan.draft_changed", target=plan_id, details={"draft": draft.id})
    return view_of(draft, PlanDraftView)


def publish(
    session: Session,
    plan_id: str,
    draft_id: str,
    wanted: DraftPublication,
    *,
    base_models: Mapping[str, Sequence[int]],
    actor: str,
) -> PublishedVersion:
    """Make a draft the plan's next version. Raises NotFound, Conflict when it is published or another version was
    published since it was written, and InvalidRequest for an instant in the past.
    """
    draft = _unpublished(session, plan_id, draft_id)
    version = service.add_version(
        session,
        plan_id,
        NewPlanVersion(
            limits=msgspec.convert(draft.limits, LimitsBody),
            prices=msgspec.convert(draft.prices, PriceCard),
            effective_from=wanted.effective_from,
            base_version=draft.base_version,
        ),
        base_models=base_models,
        actor=actor,
    )
    draft.published_version_id = version.id
    session.add(draft)
    session.flush()
    return version


def list_drafts(session: Session, plan_id: str, *, cursor: str | None, limit: int) -> Page[PlanDraftView]:
    """A plan's drafts, newest first. Raises NotFound."""
    service.get_plan(session, plan_id)
    wanted = select(PlanDraft).where(PlanDraft.plan_id == plan_id)
    view = partial(view_of, view=PlanDraftView)
    return page_of(session, wanted, col(PlanDraft.id), view, cursor=cursor, limit=limit)


def prices_of(session: Session, plan_id: str, draft_id: str) -> PriceCard:
    """The prices of a draft. Raises NotFound."""
    return msgspec.convert(_find(session, plan_id, draft_id).prices, PriceCard)


def _unpublished(session: Session, plan_id: str, draft_id: str) -> PlanDraft:
    draft = _find(session, plan_id, draft_id, lock=True)
    if draft.published_version_id is not None:
        raise Conflict(
            f"Draft {draft_id} is published as version {draft.published_version_id}. Write another one.",
            code="draft_published",
        )
    return draft


def _find(session: Session, plan_id: str, draft_id: str, *, lock: bool = False) -> PlanDraft:
    wanted = select(PlanDraft).where(PlanDraft.id == draft_id, PlanDraft.plan_id == plan_id)
    draft = session.exec(wanted.with_for_update() if lock else wanted).first()
    if draft is None:
        raise NotFound("Draft not found.", code="draft_not_found")
    return draft
