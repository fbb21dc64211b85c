"""Wire types of the reconciliation room."""

from typing import Annotated

import msgspec

from billing.settings import EVENT_KV_PAGE_MS_MAX, EVENT_TOKENS_MAX
from core import fields

Reason = Annotated[
    str, msgspec.Meta(min_length=1, max_length=500, pattern=r"^ *[^\x00-\x20\x7f][^\x00-\x1f\x7f]*(?!\n)$")
]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=EVENT_TOKENS_MAX)]


class VoidBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why the usage is voided. It is kept with the amendment."""

    reason: Annotated[Reason, fields.KEPT_REASON]


class AmendBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request used in truth, and why it is amended. A quantity that is left out stays as it is."""

    reason: Annotated[Reason, fields.KEPT_REASON]
    input_tokens: Annotated[Tokens | None, fields.INPUT_TOKENS] = None
    cached_tokens: Annotated[Tokens | None, fields.CACHED_TOKENS] = None
    output_tokens: Annotated[Tokens | None, fields.OUTPUT_TOKENS] = None
    kv_page_ms: Annotated[Annotated[int, msgspec.Meta(ge=0, le=EVENT_KV_PAGE_MS_MAX)] | None, fields.KV_PAGE_MS] = None
