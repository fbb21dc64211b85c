"""Wire types of the invoices room."""

from collections.abc import Sequence

import msgspec

from billing.views import InvoiceLineView, InvoiceView


class CloseBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``until`` is "now", by the database's clock, or an RFC 3339 instant with its offset; it is exclusive."""

    until: str


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """The invoices this close made; none when nothing was left to invoice."""

    invoices: Sequence[InvoiceView]


class InvoiceWithLines(InvoiceView, frozen=True, kw_only=True):
    """An invoice with its lines, in the order in which they are printed."""

    lines: Sequence[InvoiceLineView]
