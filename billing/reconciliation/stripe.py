"""Compares invoices with Stripe's copies of them. Until invoices are pushed to Stripe there is nothing to compare.

The comparison belongs here: one ``Difference`` of kind ``stripe`` for each invoice whose stored total at Stripe
differs, without a call to Stripe, because a run must not depend on it.
"""

from sqlmodel import Session

from billing.reconciliation.differences import Difference


def check_stripe(_session: Session) -> list[Difference]:
    """The invoices whose total at Stripe differs from ours."""
    return []
