"""Models as gateways and agents see them: adapters, revisions, aliases, base models, pins and prefetch hints.

msgspec encodes these structs as JSON. Readers ignore unknown fields, so that two versions can run together.
"""

from typing import Final, Literal

import msgspec

from core.adapter_names import engine_name


class RevisionRoute(msgspec.Struct, frozen=True, kw_only=True):
    """One ready revision of an adapter. Replicas whose largest rank is ``rank_class`` or more can serve it."""

    id: str
    digest: str
    rank: int
    rank_class: int


PROD: Final = "prod"
"""The alias that an adapter's name without a suffix refers to. The first ready revision sets it; after its removal the
name follows the newest ready revision.
"""


class AdapterRoute(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter with its ready revisions, published under ``<tenant_id>/<name>``. ``newest`` is one of them. An alias
    maps revision ids to weights.
    """

    adapter_id: str
    tenant_id: str
    name: str
    base_model: str
    created_at_ms: int
    newest: str
    revisions: dict[str, RevisionRoute]
    aliases: dict[str, dict[str, int]]

    def engine_name(self, revision_id: str) -> str:
        """The name of a revision in engines: immutable, and never chosen by a tenant."""
        return engine_name(self.adapter_id, self.revisions[revision_id].digest)


class BaseModelRoute(msgspec.Struct, frozen=True, kw_only=True):
    """The data that a gateway needs to count tokens and route for a base model, published under its id."""

    id: str
    hub_name: str
    context_tokens: int
    vocab_size: int
    tokenizer_sha256: str
    chat_template: str
    bos_token: str | None
    eos_token: str | None
    created_at_ms: int


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """A revision that the replicas of its pool keep in host memory, if the plan includes this. Published under its
    engine name.
    """

    engine_name: str
    tenant_id: str
    base_model: str
    rank_class: int


class PrefetchHint(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that requests will probably need soon. A replica that ignores the hint only answers more slowly."""

    engine_name: str
    tenant_id: str
    base_model: str
    rank_class: int
    reason: Literal["flip", "listing"]
