"""Wire types of the invoices room."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from billing.views import InvoiceLineView, InvoiceView


class CloseBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``until`` is exclusive; "now" is the database's clock."""

    until: Literal["now"] | datetime


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """The invoices this close made; none when nothing was left to invoice."""

    invoices: Sequence[InvoiceView]


class InvoiceWithLines(InvoiceView, frozen=True, kw_only=True):
    """An invoice with its lines, in the order in which they are printed."""

    lines: Sequence[InvoiceLineView]
