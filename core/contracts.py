"""Every value that crosses a process boundary through Redis. Encoded as JSON with msgspec; unknown fields are ignored,
so that a new control plane can talk to an old gateway and the reverse.
"""

from typing import Final, Literal

import msgspec

from core.engine_names import engine_name


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan allows a tenant. Every number is a ceiling, None is none. ``count_cached_tokens`` says whether prompt
    tokens from a prefix cache count towards the minute and the month, once it is known that they were. Where requests
    have to wait, tenants of a smaller ``tier`` go first, and within one each gets its ``weight`` of the tokens.
    While Redis does not answer nobody is admitted (``closed``), or as many as a gateway took beforehand (``slice``).
    """

    requests_per_minute: int
    tokens_per_minute: int
    concurrent_requests: int
    kv_pages: int
    tokens_per_month: int
    context_tokens: int
    output_tokens: int
    adapters: int
    adapter_rank: int
    adapter_bytes: int
    pinned_adapters: int = 0
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    spend_nanos_per_month: int | None = None
    count_cached_tokens: bool = True
    weight: int = 1
    tier: int = 1
    when_quota_is_unavailable: Literal["closed", "slice"] = "closed"


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one key may take of what its tenant may. None is no limit of the key's own."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    kv_pages: int | None = None
    tokens_per_month: int | None = None
    spend_nanos_per_month: int | None = None
    context_tokens: int | None = None
    output_tokens: int | None = None


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Nanodollars per token, and per KV page and second."""

    input_nanos: int
    cached_input_nanos: int
    output_nanos: int
    kv_page_second_nanos: int


class KeyGrant(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway knows of an API key; published under the key's HMAC."""

    key_id: str
    tenant_id: str
    scopes: tuple[str, ...]
    limits: KeyLimits | None = None


class TenantGrant(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway knows of a tenant; published under its id. ``charged_nanos`` was charged before the present month,
    and ``spend_ceiling_nanos`` is what may have been charged in all by its end; None is no ceiling. ``prices`` are
    those of ``price_version_id`` in billing's price book.
    """

    tenant_id: str
    status: Literal["active", "suspended"]
    limits: Limits
    prices: Prices | None = None
    price_version_id: str | None = None
    spend_ceiling_nanos: int | None = None
    charged_nanos: int = 0


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


class Revocation(msgspec.Struct, frozen=True, kw_only=True):
    """What every replica must forget, in every tier; published under its own id until all have, and a while longer for
    replicas that come back. The engine names are all revisions of one adapter.
    """

    id: str
    adapter_id: str
    base_model: str
    engine_names: tuple[str, ...]


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """A revision that replicas of its pool keep in host memory, for a plan that includes that; published under
    its engine name.
    """

    engine_name: str
    tenant_id: str
    base_model: str
    rank_class: int


SnapshotKind = Literal["keys", "tenants", "adapters", "base_models", "revocations", "pins"]


class SnapshotChange(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the change stream. ``value`` is the encoded struct, or None where the field was removed.

    A gateway that sees another epoch, or a generation that does not follow its own, reads everything again.
    """

    epoch: str
    generation: int
    kind: SnapshotKind
    field: str
    value: str | None


ReplicaState = Literal["starting", "ready", "draining", "unhealthy"]


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's heartbeat. ``url`` is the engine's own address, reachable by gateways only."""

    id: str
    url: str
    base_model: str
    state: ReplicaState
    boot_id: str
    block_tokens: int
    pages_total: int
    pages_free: int
    slots: int
    running_requests: int
    waiting_requests: int
    heartbeat_ms: int
    rank_max: int = 16
    memory_adapters: int = 0
    residency_version: int = 0


class GatewayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway process's heartbeat: the snapshot by which it decides from now on. One that is cut off from Redis can
    reserve nothing, so a gateway without a heartbeat serves nothing.
    """

    id: str
    epoch: str
    generation: int
    heartbeat_ms: int


Tier = Literal["slot", "memory", "disk", "store"]
"""Where an adapter lies, the fastest first."""


class Residency(msgspec.Struct, frozen=True, kw_only=True):
    """Which adapters lie where on one replica, by the engine's own account. ``slots`` has one entry per slot; ``disk``
    has digests, since engine names of several adapters may share one.
    """

    replica_id: str
    boot_id: str
    version: int
    slots: tuple[str | None, ...]
    memory: tuple[str, ...]
    disk: tuple[str, ...]


class RevocationReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's word that it holds nothing of a revoked adapter any more, and what it looked at to say so.
    ``aborted_requests`` were still running when the drain's time was up.
    """

    revocation_id: str
    replica_id: str
    boot_id: str
    state: Literal["draining", "removed"]
    drained_requests: int
    aborted_requests: int
    in_slots: tuple[str, ...]
    in_memory: tuple[str, ...]
    on_disk: tuple[str, ...]
    at_ms: int


class PrefetchHint(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that is about to be asked for. Advice: whoever ignores it is only slower."""

    engine_name: str
    tenant_id: str
    base_model: str
    rank_class: int
    reason: Literal["flip", "listing", "forecast"]


class EngineCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens one engine process has counted since it started, and how many of them were the agent's own probes."""

    prompt_tokens: int
    generation_tokens: int
    probe_prompt_tokens: int
    probe_generation_tokens: int

    @property
    def tenant_tokens(self) -> int:
        """Tokens that belong to tenants."""
        return (self.prompt_tokens - self.probe_prompt_tokens) + (self.generation_tokens - self.probe_generation_tokens)


Outcome = Literal["done", "client_gone", "replica_gone", "timeout", "gateway_gone"]

REST: Final = ":rest"
"""Ends the id of what a request used beyond the estimate that was billed of it: no request of its own."""


class UsageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What one request used, by the engine's own counts. The same request id twice is one charge.

    ``adapter_tier`` is where its adapter lay when it came (None for a base model), ``adapter_load_ms`` how long the
    request waited for it, ``stall_ms`` for how long its loading held up the step that every running request shares.
    An ``estimated`` event is the last checkpoint of a request whose gateway died: no more than it used, all its prompt
    cached unless the engine had said otherwise, and never a contradiction of an exact one. ``price_version_id`` is by
    which prices it was admitted, and so is charged.
    """

    request_id: str
    tenant_id: str
    key_id: str
    base_model: str
    adapter_id: str | None
    revision_id: str | None
    replica_id: str
    outcome: Outcome
    started_at_ms: int
    settled_at_ms: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    kv_page_ms: int
    first_token_ms: int | None = None
    duration_ms: int = 0
    adapter_tier: Tier | None = None
    adapter_load_ms: int = 0
    stall_ms: int = 0
    estimated: bool = False
    price_version_id: str | None = None
