"""What a gateway knows of models: adapters, their revisions and aliases, base models, pins and prefetch hints.

Values are encoded as JSON with msgspec. Readers ignore unknown fields, so that a new control plane can talk to an old
gateway and the reverse.
"""

from typing import Final, Literal

import msgspec

from core.adapter_names import engine_name


class RevisionRoute(msgspec.Struct, frozen=True, kw_only=True):
    """One ready revision of an adapter. Replicas serve it whose largest rank is ``rank_class`` or more."""

    id: str
    digest: str
    rank: int
    rank_class: int


PROD: Final = "prod"
"""The alias that an adapter's bare name means, once it is set."""


class AdapterRoute(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter with all its ready revisions; published under ``<tenant_id>/<name>``. ``newest`` is one of them, and
    each alias has weights by revision id.
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
        """The only name an engine ever sees for it: immutable, and never chosen by a tenant."""
        return engine_name(self.adapter_id, self.revisions[revision_id].digest)


class BaseModelRoute(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway needs to count and route for a base model; published under its id."""

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
    """A revision that replicas of its pool keep in host memory, for a plan that includes that; published under
    its engine name.
    """

    engine_name: str
    tenant_id: str
    base_model: str
    rank_class: int


class PrefetchHint(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that is about to be asked for. Advice: whoever ignores it is only slower."""

    engine_name: str
    tenant_id: str
    base_model: str
    rank_class: int
    reason: Literal["flip", "listing", "forecast"]
