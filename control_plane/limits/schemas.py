"""Wire types of the limits room. Answers are ``billing.limits.views``."""

from typing import Annotated

import msgspec

from billing.limits.views import LimitNanos, LimitScope, LimitWindow
from core import fields


class NewSpendLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hard limit. ``subject_id`` is the id of the key or of the adapter; leave it out for the whole tenant. A limit
    of the same subject and window is replaced.
    """

    scope: Annotated[LimitScope, fields.SPEND_LIMIT_SCOPE]
    window: Annotated[LimitWindow, fields.WINDOW]
    amount_nanos: Annotated[LimitNanos, fields.SPEND_LIMIT_NANOS]
    subject_id: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]{1,64}(?!\n)$")] | None, fields.SUBJECT_ID
    ] = None
