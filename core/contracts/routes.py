"""Models as gateways and agents see them: adapters, revisions, aliases, base models, pools, groups, pins, hints.

msgspec encodes these structs as JSON. Readers ignore unknown fields, so that two versions can run together.
"""

from typing import Final, Literal

import msgspec

from core.adapter_names import engine_name
from core.contracts.grants import ServiceClass
from core.contracts.usage import TokenCosts


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


ModelTask = Literal["generate", "embed"]
"""What a base model is for: text, or embeddings."""


class GpuTime(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU time of a prompt token that was not cached, and of a generated one, in microseconds: the time for which
    replicas were busy lately, spread over what they computed. 0 until it was measured.
    """

    input_token_us: int = 0
    output_token_us: int = 0


UNMEASURED: Final = GpuTime()


ProviderKind = Literal["openai", "anthropic", "openai_compatible"]
"""Which wire format an outside provider speaks. ``openai_compatible`` servers take more fields than OpenAI's own."""


class ProviderRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Where an outside provider serves a base model. ``model`` is the provider's name for it. ``sealed_key`` is the
    provider's API key in base64, which ``core.sealed_secrets`` opens with the provider's id. One gateway process sends
    up to ``requests_max`` requests at once; 0 switches the model off. ``margin_percent`` is what is added to the
    counted tokens of a prompt, since the provider's own tokenizer may count more.
    """

    provider_id: str
    kind: ProviderKind
    url: str
    model: str
    sealed_key: str
    requests_max: int
    margin_percent: int
    costs: TokenCosts
    spend_nanos_per_month: int | None = None

    def with_margin(self, tokens: int) -> int:
        """The prompt tokens to hold for so many counted ones."""
        return -(-tokens * (100 + self.margin_percent) // 100)

    def without_margin(self, tokens: int) -> int:
        """The counted tokens of a hold of so many prompt tokens."""
        return tokens * 100 // (100 + self.margin_percent)


class BaseModelRoute(msgspec.Struct, frozen=True, kw_only=True):
    """The data that a gateway needs to count tokens and route for a base model, published under its id. With a
    ``provider``, an outside provider serves it, and tokenizer and template are those of another base model.
    """

    id: str
    hub_name: str
    context_tokens: int
    vocab_size: int
    tokenizer_sha256: str
    chat_template: str
    bos_token: str | None
    eos_token: str | None
    created_at_ms: int
    gpu_time: GpuTime = UNMEASURED
    task: ModelTask = "generate"
    provider: ProviderRoute | None = None


class PoolRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a pool of replicas serves, published under its name unless it serves all. None in a field stands for all. A
    pool that names tenants is theirs alone, and serves them first. Tokens are those of a request's longest sequence,
    prompt and answer together.
    """

    base_model: str
    service_classes: tuple[ServiceClass, ...] | None = None
    tenants: tuple[str, ...] | None = None
    tokens_min: int | None = None
    tokens_max: int | None = None

    def serves(self, tenant_id: str, service_class: ServiceClass, tokens: int) -> bool:
        """Whether a request may run on the pool's replicas."""
        return (
            (self.service_classes is None or service_class in self.service_classes)
            and (self.tenants is None or tenant_id in self.tenants)
            and (self.tokens_min is None or tokens >= self.tokens_min)
            and (self.tokens_max is None or tokens <= self.tokens_max)
        )


RoutingRule = Literal["weighted", "classified", "overflow", "cascade"]
"""How a group chooses: by weights, by the request, by where there is room in time, or by the first member's answer."""


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """A model of a group: the name of an adapter of the group's tenant, or the id of a base model. ``weight`` is its
    share of the sessions under the rule ``weighted``.
    """

    model: str
    weight: int = 1


class GroupRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Models under one name, in order of quality, the least able first, and the rule that chooses between them.
    Published under ``<tenant_id>/<name>``. A group of the platform has the tenant id "" and base models alone.

    ``threshold_percent`` is how sure the rule ``classified`` must be that the first member suffices, and how sure that
    member must be of its words in a ``cascade``; above ``escalations_percent_max`` of replaced answers the last member
    answers alone. Under the rule ``overflow`` a request waits ``patience_ms`` for the best member, then it gets the
    next one; plans with a tier up to ``priority_tier_max`` wait for as long as without a group.
    """

    name: str
    tenant_id: str
    rule: RoutingRule
    members: tuple[GroupMember, ...]
    created_at_ms: int
    threshold_percent: int
    patience_ms: int
    priority_tier_max: int
    escalations_percent_max: int

    def may_replace(self, model: str) -> bool:
        """Whether this member's answer is judged, and the last member may answer instead: the first of a cascade."""
        return self.rule == "cascade" and model == self.members[0].model


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
