"""Grants lots of credit, takes back what is unspent, and posts what has expired.

Each change holds the tenant's subscription until the commit, so what is unspent cannot change meanwhile.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlmodel import Session, col, select

from billing.credits.balance import OpenCredit, read_open_credit
from billing.credits.lot_entries import LotState, list_lots, move, open_lots, read_lot
from billing.credits.models import CreditEntry, CreditLot
from billing.credits.views import CreditEntryView, CreditKind, LotView
from billing.settings import CREDIT_LOTS_OPEN_MAX, CREDIT_NANOS_MAX
from billing.subscriptions.billed_until import lock_subscriptions
from core.db import database_now, newest_first
from core.errors import Conflict, InvalidRequest, Unprocessable
from core.ids import new_id
from core.money import NANOS_PER_CENT, cents_to_nanos, format_usd
from core.periods import aware

DEFAULT_PRIORITY: Final = 50
PRIORITY_MAX: Final = 100
REFERENCE_LENGTH_MAX: Final = 200


def grant(  # noqa: PLR0913 - each is a field of the lot
    session: Session,
    *,
    tenant_id: str,
    kind: CreditKind,
    amount_nanos: int,
    reference: str,
    priority: int = DEFAULT_PRIORITY,
    effective_from: datetime | None = None,
    expires_at: datetime | None = None,
    models: Sequence[str] = (),
    money_arrived: bool = False,
) -> LotView:
    """Grant a lot, once for each ``reference``: granting again returns the first lot. Without ``effective_from`` it
    begins now. Empty ``models`` stand for every model and for fees. With ``money_arrived`` the number of lots is no
    reason to refuse: the money is here and must become credit.

    Raises InvalidRequest for a field that is not possible, and Conflict when the reference belongs to another grant.
    """
    _check(kind, amount_nanos, priority, reference)
    lock_subscriptions(session, [tenant_id])
    now = database_now(session)
    begins = now if effective_from is None else aware(effective_from, "effective_from")
    ends = None if expires_at is None else aware(expires_at, "expires_at")
    wanted = select(CreditLot).where(CreditLot.tenant_id == tenant_id, CreditLot.reference == reference)
    known = session.exec(wanted).first()
    if known is not None:
        if (known.kind, known.amount_nanos) != (kind, amount_nanos):
            raise Conflict(
                f"reference: {reference!r} belongs to a {known.kind} grant of {format_usd(known.amount_nanos)}; use "
                "another reference.",
                code="credit_reference_used",
                param="reference",
            )
        return get_lot(session, tenant_id=tenant_id, lot_id=known.id)
    _check_times(begins, ends, now, scheduled=effective_from is not None)
    if not money_arrived and len(open_lots(session, tenant_id)) >= CREDIT_LOTS_OPEN_MAX:
        raise Conflict(
            f"the tenant has {CREDIT_LOTS_OPEN_MAX} lots with credit; void some, or wait until they are used.",
            code="too_many_credit_lots",
        )
    lot = CreditLot(
        id=new_id("crl"),
        tenant_id=tenant_id,
        kind=kind,
        amount_nanos=amount_nanos,
        priority=priority,
        effective_from=begins,
        expires_at=ends,
        models=sorted(set(models)),
        reference=reference,
        created_at=now,
    )
    session.add(lot)
    session.flush()
    move(session, LotState(lot, 0, 0, 0, 0, 0, 0), "grant", amount_nanos)
    return get_lot(session, tenant_id=tenant_id, lot_id=lot.id)


def refund_unspent(session: Session, *, tenant_id: str, lot_id: str, amount_nanos: int) -> LotView:
    """Take unspent paid credit out of a lot because its money is paid back. Raises NotFound; Conflict for promotional
    credit; InvalidRequest for an amount that is not whole cents; and Unprocessable above what is unspent.
    """
    state, credit = _held(session, tenant_id, lot_id)
    if state.lot.kind != "paid":
        raise Conflict(f"The lot {lot_id} is promotional and was not paid; void it instead.", code="credit_not_paid")
    if amount_nanos <= 0 or amount_nanos % NANOS_PER_CENT:
        raise InvalidRequest(
            f"amount_nanos is {amount_nanos}; money is paid back in whole cents, positive multiples of "
            f"{NANOS_PER_CENT}.",
            param="amount_nanos",
        )
    unspent = credit.unspent_nanos(state)
    if amount_nanos > unspent:
        raise Unprocessable(
            f"amount_nanos is {amount_nanos}; of the lot {lot_id}, {format_usd(unspent)} ({unspent} nanodollars) is "
            "unspent. Refund at most that.",
            code="refund_exceeds_unspent",
            param="amount_nanos",
        )
    move(session, state, "refund", -amount_nanos)
    return get_lot(session, tenant_id=tenant_id, lot_id=lot_id)


def void_unspent(session: Session, *, tenant_id: str, lot_id: str) -> LotView:
    """Take everything unspent out of a lot that should not have been granted. What was used stays used. Raises
    NotFound, and Conflict when nothing is unspent.
    """
    state, credit = _held(session, tenant_id, lot_id)
    unspent = credit.unspent_nanos(state)
    if unspent == 0:
        raise Conflict(f"Nothing of the lot {lot_id} is unspent.", code="credit_lot_used")
    move(session, state, "void", -unspent)
    return get_lot(session, tenant_id=tenant_id, lot_id=lot_id)


def void_promotional(session: Session, tenant_id: str) -> int:
    """Take everything unspent out of the promotional lots of a tenant that has left. Paid lots stay, to be refunded.
    Returns how many lots moved.
    """
    lock_subscriptions(session, [tenant_id])
    credit = read_open_credit(session, tenant_id)
    gifts = [state for state in credit.lots if state.lot.kind == "promotional" and credit.unspent_nanos(state) > 0]
    for state in sorted(gifts, key=lambda each: each.lot.id):
        move(session, state, "void", -credit.unspent_nanos(state))
    return len(gifts)


def lapse(session: Session, tenant_id: str) -> int:
    """Post what the tenant's expired lots have lost, so that the ledger says what the balance says. Usage of before an
    expiry that was recorded since takes its part back. Returns how many lots moved.
    """
    lock_subscriptions(session, [tenant_id])
    found = lapses(session, tenant_id)
    for state, amount_nanos in found:
        move(session, state, "lapse", -amount_nanos)
    return len(found)


def lapses(session: Session, tenant_id: str) -> list[tuple[LotState, int]]:
    """What ``lapse`` would post: each lot, and what it loses or, below 0, takes back."""
    credit = read_open_credit(session, tenant_id)
    found = []
    for state in sorted(credit.lots, key=lambda each: each.lot.id):
        ends = state.lot.expires_at
        excess = state.balance_nanos - credit.pending.get(state.lot.id, 0)
        if ends is not None and ends <= credit.now and excess != 0:
            found.append((state, excess))
    return found


def take_back(session: Session, *, tenant_id: str, reference: str, amount_cents: int) -> int:
    """Take unspent paid credit out of the lot that ``reference`` granted, because its payment went back. Returns the
    cents that are missing because they are spent, or because there is no such lot. The caller takes it back once.
    """
    lot_id = _paid_lot(session, tenant_id, reference)
    if lot_id is None:
        return amount_cents
    state, credit = _held(session, tenant_id, lot_id)
    taken_cents = min(amount_cents, credit.unspent_nanos(state) // NANOS_PER_CENT)
    if taken_cents > 0:
        move(session, state, "refund", -cents_to_nanos(taken_cents))
    return amount_cents - taken_cents


def refunded_cents(session: Session, *, tenant_id: str, reference: str) -> int:
    """What refunds have taken out of the lot that ``reference`` granted. It stays so until the transaction ends."""
    lot_id = _paid_lot(session, tenant_id, reference)
    if lot_id is None:
        return 0
    return read_lot(session, tenant_id=tenant_id, lot_id=lot_id).refunded_nanos // NANOS_PER_CENT


def get_lot(session: Session, *, tenant_id: str, lot_id: str) -> LotView:
    """One lot of the tenant. Raises NotFound."""
    state = read_lot(session, tenant_id=tenant_id, lot_id=lot_id)
    return read_open_credit(session, tenant_id).view(state)


def page_of_lots(session: Session, tenant_id: str, *, after: str | None, limit: int) -> list[LotView]:
    """The tenant's lots, newest first, used and expired ones included."""
    credit = read_open_credit(session, tenant_id)
    return [credit.view(state) for state in list_lots(session, tenant_id, after=after, limit=limit)]


def page_of_entries(session: Session, tenant_id: str, *, after: str | None, limit: int) -> list[CreditEntryView]:
    """What moved the tenant's lots, newest first. ``after`` is the last transfer of the page before."""
    of_tenant = select(CreditEntry).join(CreditLot, col(CreditLot.id) == CreditEntry.lot_id)
    statement = newest_first(
        of_tenant.where(CreditLot.tenant_id == tenant_id), col(CreditEntry.transfer_id), after=after, limit=limit
    )
    return [CreditEntryView(**entry.model_dump()) for entry in session.exec(statement)]


def _paid_lot(session: Session, tenant_id: str, reference: str) -> str | None:
    lock_subscriptions(session, [tenant_id])
    wanted = select(CreditLot.id).where(
        CreditLot.tenant_id == tenant_id, CreditLot.reference == reference, CreditLot.kind == "paid"
    )
    return session.exec(wanted).first()


def _held(session: Session, tenant_id: str, lot_id: str) -> tuple[LotState, OpenCredit]:
    lock_subscriptions(session, [tenant_id])
    return read_lot(session, tenant_id=tenant_id, lot_id=lot_id), read_open_credit(session, tenant_id)


def _check(kind: CreditKind, amount_nanos: int, priority: int, reference: str) -> None:
    if not 0 < amount_nanos <= CREDIT_NANOS_MAX:
        raise InvalidRequest(
            f"amount_nanos is {amount_nanos}; use 1 to {CREDIT_NANOS_MAX} nanodollars.", param="amount_nanos"
        )
    if kind == "paid" and amount_nanos % NANOS_PER_CENT:
        raise InvalidRequest(
            f"amount_nanos is {amount_nanos}; paid credit comes in whole cents, multiples of {NANOS_PER_CENT}.",
            param="amount_nanos",
        )
    if not 0 <= priority <= PRIORITY_MAX:
        raise InvalidRequest(f"priority is {priority}; use 0 (burned first) to {PRIORITY_MAX}.", param="priority")
    if not 1 <= len(reference) <= REFERENCE_LENGTH_MAX:
        raise InvalidRequest(f"reference: use 1 to {REFERENCE_LENGTH_MAX} characters.", param="reference")


def _check_times(begins: datetime, ends: datetime | None, now: datetime, *, scheduled: bool) -> None:
    if scheduled and begins < now:
        raise InvalidRequest(
            f"effective_from is {begins.isoformat()}, in the past; credit covers usage from now on. Leave it out, or "
            f"use an instant after {now.isoformat()}.",
            param="effective_from",
        )
    if ends is not None and ends <= begins:
        raise InvalidRequest(
            f"expires_at is {ends.isoformat()}, not after the lot begins at {begins.isoformat()}; use a later instant.",
            param="expires_at",
        )
