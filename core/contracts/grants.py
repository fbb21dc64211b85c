"""API keys, tenants, limits and prices as the control plane publishes them to gateways. Routes of models are not here.

msgspec encodes these structs as JSON. Readers ignore unknown fields, so that two versions can run together.
"""

from typing import Annotated, Literal, get_args

import msgspec

from core import fields
from core.spend_windows import SpendWindow

ServiceTier = Literal["default", "flex"]
"""What a request costs: the plan's price, or its batch factor of it."""


Payer = Literal["tenant", "platform"]

ServiceClass = Literal["near_real_time", "interactive", "batch"]
"""How soon a request is served: short answers at once, the first token soon, or whenever there is room."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a tenant's plan. Each number is a maximum; None means no limit. ``count_cached_tokens``: whether
    prompt tokens from the prefix cache count towards the minute and the month, once the engine has reported them.
    While requests wait, tenants of a smaller ``tier`` go first, and tenants of one tier share the tokens by ``weight``.
    While Redis does not answer, a gateway admits no requests (``closed``), or as many as its prefetched share allows
    (``slice``). ``service_classes`` are those that requests may have. ``escalated_calls_paid_by`` says who pays for the
    first answer of a cascade where it was replaced. ``batch_tokens`` are those of all batches that have
    not ended.
    """

    requests_per_minute: Annotated[int, fields.REQUESTS_PER_MINUTE]
    tokens_per_minute: Annotated[int, fields.TOKENS_PER_MINUTE]
    concurrent_requests: Annotated[int, fields.CONCURRENT_REQUESTS]
    kv_pages: Annotated[int, fields.KV_PAGES]
    tokens_per_month: Annotated[int, fields.TOKENS_PER_MONTH]
    context_tokens: Annotated[int, fields.CONTEXT_TOKENS]
    output_tokens: Annotated[int, fields.OUTPUT_TOKENS]
    adapters: Annotated[int, fields.ADAPTERS]
    adapter_rank: Annotated[int, fields.ADAPTER_RANK]
    adapter_bytes: Annotated[int, fields.ADAPTER_BYTES]
    pinned_adapters: Annotated[int, fields.PINNED_ADAPTERS] = 0
    input_tokens_per_minute: Annotated[int | None, fields.INPUT_TOKENS_PER_MINUTE] = None
    output_tokens_per_minute: Annotated[int | None, fields.OUTPUT_TOKENS_PER_MINUTE] = None
    spend_nanos_per_month: Annotated[int | None, fields.SPEND_NANOS_PER_MONTH] = None
    count_cached_tokens: Annotated[bool, fields.COUNT_CACHED_TOKENS] = True
    weight: Annotated[int, fields.WEIGHT] = 1
    tier: Annotated[int, fields.TIER] = 1
    when_quota_is_unavailable: Annotated[Literal["closed", "slice"], fields.WHEN_QUOTA_IS_UNAVAILABLE] = "closed"
    service_classes: Annotated[tuple[ServiceClass, ...], fields.SERVICE_CLASSES] = get_args(ServiceClass)
    gpu_seconds_per_minute: Annotated[int | None, fields.GPU_SECONDS_PER_MINUTE] = None
    gpu_seconds_per_month: Annotated[int | None, fields.GPU_SECONDS_PER_MONTH] = None
    escalated_calls_paid_by: Annotated[Payer, fields.ESCALATED_CALLS_PAID_BY] = "tenant"
    batch_tokens: Annotated[int | None, fields.BATCH_TOKENS] = None


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one API key, below those of its tenant. None means that the key adds no limit."""

    requests_per_minute: Annotated[int | None, fields.REQUESTS_PER_MINUTE] = None
    tokens_per_minute: Annotated[int | None, fields.TOKENS_PER_MINUTE] = None
    input_tokens_per_minute: Annotated[int | None, fields.INPUT_TOKENS_PER_MINUTE] = None
    output_tokens_per_minute: Annotated[int | None, fields.OUTPUT_TOKENS_PER_MINUTE] = None
    concurrent_requests: Annotated[int | None, fields.CONCURRENT_REQUESTS] = None
    kv_pages: Annotated[int | None, fields.KV_PAGES] = None
    tokens_per_month: Annotated[int | None, fields.TOKENS_PER_MONTH] = None
    spend_nanos_per_month: Annotated[int | None, fields.SPEND_NANOS_PER_MONTH] = None
    context_tokens: Annotated[int | None, fields.CONTEXT_TOKENS] = None
    output_tokens: Annotated[int | None, fields.OUTPUT_TOKENS] = None
    service_classes: Annotated[tuple[ServiceClass, ...] | None, fields.SERVICE_CLASSES] = None


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices in nanodollars: per token, and per KV page and second."""

    input_nanos: Annotated[int, fields.INPUT_NANOS]
    cached_input_nanos: Annotated[int, fields.CACHED_INPUT_NANOS]
    output_nanos: Annotated[int, fields.OUTPUT_NANOS]
    kv_page_second_nanos: Annotated[int, fields.KV_PAGE_SECOND_NANOS]


class ModelPrices(msgspec.Struct, frozen=True, kw_only=True):
    """The prices of one base model, or, with ``rank_class``, of its adapters in that rank class. Flex requests have
    their own where the plan has a batch factor.
    """

    base_model: str
    prices: Prices
    rank_class: int | None = None
    flex_prices: Prices | None = None


class KeyGrant(msgspec.Struct, frozen=True, kw_only=True):
    """An API key as gateways see it, published under the HMAC of the key, and while it is rotated under two. ``models``
    names the adapters, groups and base models that it may call; None stands for all.
    """

    key_id: str
    tenant_id: str
    scopes: tuple[str, ...]
    limits: KeyLimits | None = None
    models: tuple[str, ...] | None = None
    expires_at_ms: int | None = None


class SpendLimitGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A hard limit on what a tenant, one key or one adapter may spend in each day or month of the tenant's time zone.
    ``spent_nanos`` is at least what was spent in the window that began at ``window_start_ms``.
    """

    scope: Literal["tenant", "key", "adapter"]
    subject_id: str
    window: SpendWindow
    amount_nanos: int
    window_start_ms: int = 0
    spent_nanos: int = 0


class TenantGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as gateways see it, published under the tenant's id. ``charged_nanos`` is the total charged before the
    current month. ``spend_ceiling_nanos`` is the largest total allowed at the end of the month; None means no ceiling.
    ``spend_limits`` apply in the time zone ``zone``.
    ``prices`` and ``model_prices`` are the highest prices of ``price_version_id`` in billing's price book, and
    ``flex_prices`` those of flex requests; None means that the plan has no flex tier.
    """

    tenant_id: str
    status: Literal["active", "suspended"]
    limits: Limits
    prices: Prices | None = None
    price_version_id: str | None = None
    spend_ceiling_nanos: int | None = None
    charged_nanos: int = 0
    model_prices: tuple[ModelPrices, ...] = ()
    spend_limits: tuple[SpendLimitGrant, ...] = ()
    zone: str = "UTC"
    flex_prices: Prices | None = None

    def prices_of(
        self, base_model: str, rank_class: int | None, service_tier: ServiceTier = "default"
    ) -> Prices | None:
        """The prices of a model in a service tier: those of its rank class, else of the model, else of all models."""
        found: TenantGrant | ModelPrices = self
        for entry in self.model_prices:
            if entry.base_model == base_model:
                if entry.rank_class == rank_class:
                    found = entry
                    break
                if entry.rank_class is None:
                    found = entry
        return found.flex_prices or found.prices if service_tier == "flex" else found.prices
