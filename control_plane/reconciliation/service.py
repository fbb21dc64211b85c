"""Lists reconciliations, and amends usage before its invoice. ``billing`` does the work; this room adds audit rows."""

from sqlmodel import Session

from billing.reconciliation import runs
from billing.reconciliation.views import ReconciliationRunDetail, ReconciliationRunView
from billing.usage import amendments
from billing.usage.amendments import AmendedQuantities
from billing.usage.views import AmendedUsageView
from control_plane.audit import service as audit
from control_plane.paging import Page, decode_cursor, encode_cursor
from control_plane.reconciliation.schemas import AmendBody


def list_runs(session: Session, *, cursor: str | None, limit: int) -> Page[ReconciliationRunView]:
    """Stored runs, the newest first."""
    found = runs.list_runs(session, after=decode_cursor(cursor), limit=limit + 1)
    following = encode_cursor(found[limit - 1].id) if len(found) > limit else None
    return Page(data=found[:limit], next_cursor=following)


def get_run(session: Session, run_id: str) -> ReconciliationRunDetail:
    """One run with its differences. Raises NotFound."""
    return runs.read_run(session, run_id)


def read_usage(session: Session, request_id: str) -> AmendedUsageView:
    """What a request is charged for. Raises NotFound."""
    return amendments.read_amended(session, request_id)


def amend(session: Session, request_id: str, body: AmendBody, *, actor: str) -> AmendedUsageView:
    """Charge other quantities. Raises what ``amendments.amend`` raises."""
    quantities = AmendedQuantities(
        input_tokens=body.input_tokens,
        cached_tokens=body.cached_tokens,
        output_tokens=body.output_tokens,
        kv_page_ms=body.kv_page_ms,
    )
    found = amendments.amend(session, request_id, quantities, reason=body.reason, actor=actor)
    _record(session, "usage.amended", found, reason=body.reason, actor=actor)
    return found


def void(session: Session, request_id: str, *, reason: str, actor: str) -> AmendedUsageView:
    """Charge nothing. Raises what ``amendments.void`` raises."""
    found = amendments.void(session, request_id, reason=reason, actor=actor)
    _record(session, "usage.voided", found, reason=reason, actor=actor)
    return found


def _record(session: Session, action: str, found: AmendedUsageView, *, reason: str, actor: str) -> None:
    details = {
        "recorded_nanos": found.recorded_nanos,
        "charged_nanos": found.charged_nanos,
        "reason": reason,
    }
    audit.record(
        session, actor=actor, action=action, target=found.request_id, tenant_id=found.tenant_id, details=details
    )
