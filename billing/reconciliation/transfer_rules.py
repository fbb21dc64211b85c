"""Which accounts a transfer of each kind may move. A leg on any other account is a defect or a change by hand."""

from collections.abc import Mapping
from typing import Final

from billing.ledger import AccountKind, TransferKind

ACCOUNTS: Final[Mapping[TransferKind, tuple[AccountKind, ...]]] = {
    "usage": ("usage_unbilled", "revenue"),
    "adjustment": ("usage_unbilled", "revenue"),
    "amendment": ("usage_unbilled", "revenue"),
    "invoice": ("usage_unbilled", "receivable", "tax_payable", "rounding"),
    "credit_note": ("receivable", "bad_debt", "customer_balance", "cash", "revenue", "tax_payable"),
    "payment": ("receivable", "customer_balance", "cash"),
    "refund": ("customer_balance", "cash", "credits_paid", "credits_promotional", "promotions"),
    "void": (
        "usage_unbilled", "receivable", "customer_balance", "revenue", "tax_payable", "rounding",
        "credits_paid", "credits_promotional", "cash", "promotions",
    ),
    "write_off": ("receivable", "bad_debt", "cash"),
    "recovery": ("receivable", "bad_debt", "cash"),
    "credit_grant": ("credits_paid", "credits_promotional", "cash", "promotions"),
    "credit_burn": ("credits_paid", "credits_promotional", "usage_unbilled", "receivable"),
    "credit_lapse": ("credits_paid", "credits_promotional", "breakage", "promotions"),
    "balance": ("customer_balance", "receivable"),
}  # fmt: skip
"""By kind of transfer: every account that may have a leg of it."""
