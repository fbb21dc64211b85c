"""Lowers what an open invoice at Stripe asks for, after a part of it was credited or paid in another way.

Stripe offers one way for an invoice that is finalized: a credit note, which first reduces what remains to be paid
(https://docs.stripe.com/api/credit_notes/create). How much to lower is not what an operation says but what Stripe asks
for beyond the amount due in our books, both read just before. So an amount that was deducted once, also by an operation
whose answer was lost, is not deducted again.
"""

from collections.abc import Callable
from typing import Literal

from billing.payments.outcomes import QueueStops
from billing.payments.steps import Steps
from billing.stripe_client import StripeAccount
from billing.stripe_errors import StripeRefused
from billing.stripe_objects import StripeInvoice, StripeRefund

_LOWERINGS_MAX = 20  # in one operation; each is an amount that stopped being due meanwhile


def credit_note(
    account: StripeAccount,
    steps: Steps,
    stripe_invoice: str,
    our_id: str,
    amount_cents: int,
    memo: str,
    *,
    to: StripeRefund | Literal["amount_due", "outside"],
) -> str | None:
    """Write a credit note at Stripe over at most what is left to credit there. Returns its id; None if nothing is left,
    because what was paid in another way stands on notes already.
    """
    left_cents = steps.decide(
        f"left:{our_id}", lambda: str(min(amount_cents, account.invoice(stripe_invoice).uncredited_cents))
    )
    if int(left_cents) <= 0:
        return None
    return steps.once(
        f"note:{our_id}",
        lambda key: account.create_credit_note(
            stripe_invoice, our_id=our_id, amount_cents=int(left_cents), memo=memo, to=to, key=key
        ),
        lambda _since, _until: account.find_credit_note(stripe_invoice, our_id=our_id),
    )


def lower(
    account: StripeAccount,
    steps: Steps,
    stripe_invoice: str,
    due: Callable[[], int],
    *,
    our_id: str,
    memo: str,
    most_cents: int,
) -> str | None:
    """Write one credit note over what an open invoice asks for beyond ``due``, ``most_cents`` at most. Returns its id;
    None if there is nothing to lower: Stripe does not ask for more than is due, or the invoice is paid or ended.
    """
    found = account.invoice(stripe_invoice)
    excess_cents = min(found.remaining_cents - due(), most_cents)
    if found.status != "open" or excess_cents <= 0:
        return None
    try:
        return credit_note(account, steps, stripe_invoice, our_id, excess_cents, memo, to="amount_due")
    except StripeRefused:
        # The customer paid at the same moment. What was too much goes to the balance, with an alarm.
        if account.invoice(stripe_invoice).status == "open":
            raise
        return None


def lower_to_due(
    account: StripeAccount, steps: Steps, stripe_invoice: str, due: Callable[[], int], *, operation_id: str, memo: str
) -> StripeInvoice:
    """Lower an open invoice until it asks for what is due at most, before its payment is attempted. Returns it as it is
    then. Each note is named by what was credited before it, so that one whose answer was lost is not written twice.
    """
    for _ in range(_LOWERINGS_MAX):
        found = account.invoice(stripe_invoice)
        our_id = f"{operation_id}:{found.total_cents - found.uncredited_cents}"
        if lower(account, steps, stripe_invoice, due, our_id=our_id, memo=memo, most_cents=found.total_cents) is None:
            return account.invoice(stripe_invoice)
    raise QueueStops("totals_differ", f"{stripe_invoice} asks for more than is due after {_LOWERINGS_MAX} credit notes")
