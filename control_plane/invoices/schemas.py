"""Wire types of the invoices room."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from billing.views import InvoiceLineView, InvoiceView


class CloseBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The exclusive end of the period: "now", by the database's clock, or an RFC 3339 instant with an offset."""

    until: Annotated[str, msgspec.Meta(extra_json_schema={"anyOf": [{"const": "now"}, {"format": "date-time"}]})]


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """The invoices that this close created; empty when there was nothing to invoice."""

    invoices: Sequence[InvoiceView]


class InvoiceWithLines(InvoiceView, frozen=True, kw_only=True):
    """An invoice with its lines in printing order."""

    lines: Sequence[InvoiceLineView]
