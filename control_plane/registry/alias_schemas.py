"""Wire types of aliases: what one is pointed at, what is shown of it, and what a move answers."""

from datetime import datetime
from typing import Annotated

import msgspec

RevisionId = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class AliasTarget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What an alias points at: one ``revision``, or several by ``weights`` such as ``{"rev_a": 90, "rev_b": 10}``."""

    revision: RevisionId | None = None
    weights: dict[RevisionId, int] | None = None


class AliasView(msgspec.Struct, frozen=True, kw_only=True):
    """An alias. ``model`` is what callers of the gateway write; ``revision`` is there when it is one only."""

    name: str
    adapter: str
    model: str
    revision: str | None
    weights: dict[str, int]
    updated_at: datetime


class AliasMoved(msgspec.Struct, frozen=True, kw_only=True):
    """An alias after it was set, or removed: then ``alias`` is null. ``previous`` is what it pointed at before or null;
    sent as the body of the same call it takes the move back. ``acknowledged`` says that from now on every live gateway
    decides by this; ``gateways`` counts those that do, after ``waited_ms``.
    """

    alias: AliasView | None
    previous: AliasTarget | None
    acknowledged: bool
    gateways: int
    waited_ms: int
