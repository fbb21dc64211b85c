"""Amends or voids what a request was recorded as, before its period is invoiced. The record itself stays as it is.

An amendment is written beside the record: what was charged is reversed, and what should have been charged replaces it,
each with a transfer of its own. A trigger corrects the sums (``usage_amendments_counted``), so the process that amends
cannot write them. The tenant's subscription is held meanwhile, so no close sees half of it. After the invoice a
correction is a credit note, and an amendment is refused.
"""

from datetime import datetime
from typing import Any, Final, Literal

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing import ledger
from billing.prices import price_book
from billing.prices.quantities import AMOUNTS, COUNTED, RequestCounts
from billing.subscriptions.billed_until import lock_billed_until
from billing.usage.models import UsageAmendment, UsageRecord
from billing.usage.views import AmendedUsageView, AmendmentView
from core.contracts.usage import REST
from core.db import database_now
from core.errors import Conflict, InvalidRequest, NotFound
from core.rating import rate
from core.struct_types import view_of

_USAGE_NOW: Final = sa.text("SELECT * FROM usage_now WHERE request_id = :request_id")

_Row = dict[str, Any]  # the columns of a usage record


class AmendedQuantities(msgspec.Struct, frozen=True, kw_only=True):
    """What a request used in truth. None leaves a quantity as it is."""

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    kv_page_ms: int | None = None


def read_amended(session: Session, request_id: str) -> AmendedUsageView:
    """A record, what it is charged now, and its amendments. Raises NotFound."""
    return _view(session, _record(session, request_id))


def tenants_amended_since(session: Session, instant: datetime) -> list[str]:
    """The tenants of which usage was amended or voided at or after an instant."""
    lately = col(UsageAmendment.created_at) >= instant
    return list(session.exec(select(UsageAmendment.tenant_id).where(lately).distinct()))


def amend(
    session: Session, request_id: str, quantities: AmendedQuantities, *, reason: str, actor: str
) -> AmendedUsageView:
    """Charge other quantities at the same prices. Raises NotFound; Conflict once the usage is invoiced or voided, or
    for an estimate whose rest is recorded; InvalidRequest for quantities that are impossible or the same.
    """
    record = _record(session, request_id)
    _hold_uninvoiced(session, record)
    before = _usage_now(session, record.request_id)
    if _find(session, request_id + REST) is not None:
        raise Conflict(
            f"usage {request_id} was estimated and its rest recorded later; void it instead.", code="usage_has_rest"
        )
    wanted = {name: value for name, value in msgspec.structs.asdict(quantities).items() if value is not None}
    after = _rated(session, {**before, **wanted}, {name: before[name] for name in COUNTED})
    _reverse(session, before, reason=reason, actor=actor)
    _write(session, "replacement", after, reason=reason, actor=actor)
    return _view(session, record)


def void(session: Session, request_id: str, *, reason: str, actor: str) -> AmendedUsageView:
    """Charge nothing for a request; the rest of an estimate is voided with it. Raises NotFound, and Conflict once the
    usage is invoiced or voided.
    """
    record = _record(session, request_id)
    rest = None if request_id.endswith(REST) else _find(session, request_id + REST)
    _hold_uninvoiced(session, record)
    if rest is not None:
        _hold_uninvoiced(session, rest)
    for each in (record, rest):
        if each is not None:
            _reverse(session, _usage_now(session, each.request_id), reason=reason, actor=actor)
    return _view(session, record)


def _find(session: Session, request_id: str) -> UsageRecord | None:
    return session.exec(select(UsageRecord).where(col(UsageRecord.request_id) == request_id)).one_or_none()


def _record(session: Session, request_id: str) -> UsageRecord:
    record = _find(session, request_id)
    if record is None:
        raise NotFound(f"no usage of request {request_id} is recorded.", code="usage_not_found")
    return record


def _hold_uninvoiced(session: Session, record: UsageRecord) -> None:
    """Hold the tenant's subscription. Raises Conflict when the record's period is closed."""
    billed_until = lock_billed_until(session, record.tenant_id)
    belongs_to: datetime = record.late_from or record.settled_at
    if billed_until is not None and belongs_to < billed_until:
        raise Conflict(
            f"usage {record.request_id} is on a final invoice, which covers everything before "
            f"{billed_until.isoformat()}; issue a credit note for that invoice instead.",
            code="usage_is_invoiced",
        )


def _usage_now(session: Session, request_id: str) -> _Row:
    """What the request is charged for now. The caller holds the tenant's subscription."""
    row = session.connection().execute(_USAGE_NOW, {"request_id": request_id}).mappings().one_or_none()
    if row is None:
        raise Conflict(f"usage {request_id} is voided already.", code="usage_is_voided")
    return dict(row)


def _rated(session: Session, row: _Row, before: dict[str, int]) -> _Row:
    if all(row[name] == before[name] for name in COUNTED):
        raise InvalidRequest(
            "the quantities are those that are charged already; change one of them.", param="output_tokens"
        )
    if row["cached_tokens"] > row["input_tokens"]:
        raise InvalidRequest(
            f"cached_tokens is {row['cached_tokens']}, more than input_tokens, {row['input_tokens']}; it is a part of "
            "them.",
            param="cached_tokens",
        )
    row["aborted_prefill_tokens"] = min(row["aborted_prefill_tokens"], row["input_tokens"])
    version = price_book.versions_by_id(session, {row["price_version_id"]})[row["price_version_id"]]
    prices = version.card.highest_prices(row["base_model"], row["rank_class"], row["service_tier"])
    rated = rate(msgspec.convert(row, RequestCounts), prices)
    return {**row, **msgspec.structs.asdict(rated), "amount_nanos": rated.amount_nanos}


def _reverse(session: Session, row: _Row, *, reason: str, actor: str) -> None:
    _write(session, "reversal", row, reason=reason, actor=actor)


def _write(session: Session, part: Literal["reversal", "replacement"], row: _Row, *, reason: str, actor: str) -> None:
    amount_nanos = -row["amount_nanos"] if part == "reversal" else row["amount_nanos"]
    transfer_id = ledger.post(session, "amendment", ledger.earned({row["tenant_id"]: amount_nanos}))
    newest = select(sa.func.coalesce(sa.func.max(UsageAmendment.position), 0)).where(
        col(UsageAmendment.request_id) == row["request_id"]
    )
    session.add(
        UsageAmendment(
            request_id=row["request_id"],
            position=session.exec(newest).one() + 1,
            part=part,
            tenant_id=row["tenant_id"],
            transfer_id=transfer_id,
            reason=reason,
            actor=actor,
            created_at=database_now(session),
            **{name: row[name] for name in (*COUNTED, *AMOUNTS, "amount_nanos")},
        )
    )
    session.flush()


def _view(session: Session, record: UsageRecord) -> AmendedUsageView:
    rows = session.exec(
        select(UsageAmendment)
        .where(col(UsageAmendment.request_id) == record.request_id)
        .order_by(col(UsageAmendment.position))
    ).all()
    parts = tuple(view_of(row, AmendmentView) for row in rows)
    now = parts[-1] if parts else None
    charged = record if now is None else now
    voided = now is not None and now.part == "reversal"
    return view_of(
        record,
        AmendedUsageView,
        recorded_nanos=record.amount_nanos,
        charged_nanos=0 if voided else charged.amount_nanos,
        voided=voided,
        **{name: 0 if voided else getattr(charged, name) for name in COUNTED},
        amendments=parts,
    )
