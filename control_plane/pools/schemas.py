"""Wire types of the pools room."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec

from core import fields
from core.contracts.grants import ServiceClass
from core.fields import about

PoolName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}(?!\n)$"), about("Name of the pool.")]
_Replicas = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
_Min = Annotated[_Replicas, about("Fewest replicas.")]
_Max = Annotated[_Replicas, about("Most replicas.")]
_TargetMs = Annotated[int, msgspec.Meta(ge=1, le=600_000)]
_Ttft = about("Milliseconds to the first token that 95 % of streams should stay below; null for no target.")
_Itl = about("Milliseconds between two tokens that 95 % of streams should stay below; null for no target.")
_Classes = Annotated[
    Annotated[tuple[ServiceClass, ...], msgspec.Meta(min_length=1, max_length=3)] | None,
    about("Classes of service that it serves; null for all."),
]
_Tenants = Annotated[
    Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=1_000)] | None,
    about("Ids of the tenants whose dedicated capacity it is; null for all tenants."),
]
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=16_777_216)]
_TokensMin = Annotated[_Tokens | None, about("Fewest tokens of prompt and answer of a request; null for no bound.")]
_TokensMax = Annotated[_Tokens | None, about("Most tokens of prompt and answer of a request; null for no bound.")]
_Hardware = Annotated[
    str,
    msgspec.Meta(max_length=100, pattern=fields.ONE_LINE_OR_EMPTY, description="Machines that it runs on."),
]
_Number = Annotated[int, msgspec.Meta(ge=1, le=1_000_000, description="Number of a revision of the pool.")]
_Weights = Annotated[
    str,
    msgspec.Meta(pattern=r"^[0-9a-f]{64}(?!\n)$", description="Digest that `tenora base-models push` prints."),
]
_Engine = Annotated[
    str,
    msgspec.Meta(
        min_length=1, max_length=100, pattern=r"^[!-~]+( [!-~]+)*(?!\n)$",
        description="Engine with its version and device, such as vllm 0.32.0 gpu.",
    ),
]  # fmt: skip
_Settings = about("Settings of the engine by name, such as engine_slots.")


class NewPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pool. Its base model and its rank class never change."""

    name: PoolName
    base_model: Annotated[str, msgspec.Meta(max_length=200, pattern=fields.ONE_LINE), fields.BASE_MODEL]
    rank_max: Annotated[int, fields.LARGEST_RANK] = 16
    hardware: _Hardware = ""
    replicas_min: _Min = 1
    replicas_max: _Max = 1
    ttft_target_ms: Annotated[_TargetMs | None, _Ttft] = None
    itl_target_ms: Annotated[_TargetMs | None, _Itl] = None
    service_classes: _Classes = None
    tenants: _Tenants = None
    tokens_min: _TokensMin = None
    tokens_max: _TokensMax = None


class PoolPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a pool. An omitted field keeps its value."""

    hardware: _Hardware | msgspec.UnsetType = msgspec.UNSET
    replicas_min: _Min | msgspec.UnsetType = msgspec.UNSET
    replicas_max: _Max | msgspec.UnsetType = msgspec.UNSET
    ttft_target_ms: Annotated[_TargetMs | None, _Ttft] | msgspec.UnsetType = msgspec.UNSET
    itl_target_ms: Annotated[_TargetMs | None, _Itl] | msgspec.UnsetType = msgspec.UNSET
    service_classes: _Classes | msgspec.UnsetType = msgspec.UNSET
    tenants: _Tenants | msgspec.UnsetType = msgspec.UNSET
    tokens_min: _TokensMin | msgspec.UnsetType = msgspec.UNSET
    tokens_max: _TokensMax | msgspec.UnsetType = msgspec.UNSET


class NewPoolRevision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What changes from the pool's newest revision to the new one. The first revision needs weights and engine; its
    other settings are the defaults.
    """

    weights: _Weights | msgspec.UnsetType = msgspec.UNSET
    engine: _Engine | msgspec.UnsetType = msgspec.UNSET
    settings: Annotated[dict[str, Any], _Settings] = {}


class PoolRevisionChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The revision that the pool's replicas must run."""

    revision: _Number


class PoolReplicas(msgspec.Struct, frozen=True, kw_only=True):
    """How many replicas of a pool are in one state."""

    revision: Annotated[int | None, about("Revision that they run; null for one that the pool does not have.")]
    state: Annotated[str, about("State of the replicas.")]
    count: Annotated[int, about("Number of the replicas.")]


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """A pool, and the replicas that say that they belong to it."""

    name: Annotated[str, fields.NAME]
    base_model: Annotated[str, fields.BASE_MODEL]
    rank_max: Annotated[int, fields.LARGEST_RANK]
    hardware: Annotated[str, about("Machines that it runs on.")]
    replicas_min: Annotated[int, about("Fewest replicas.")]
    replicas_max: Annotated[int, about("Most replicas.")]
    ttft_target_ms: Annotated[int | None, _Ttft]
    itl_target_ms: Annotated[int | None, _Itl]
    service_classes: _Classes
    tenants: _Tenants
    tokens_min: _TokensMin
    tokens_max: _TokensMax
    revision: Annotated[int | None, about("Number of the revision in force; null before the first.")]
    replicas_wanted: Annotated[int, about("Replicas that placers keep running now. What does not report has no place.")]
    replicas: Annotated[tuple[PoolReplicas, ...], about("Live replicas, by revision and state.")]
    created_at: Annotated[datetime, fields.CREATED_AT]


class PoolRevisionView(msgspec.Struct, frozen=True, kw_only=True):
    """A revision, which never changes. ``environment`` are the variables of a replica that runs it."""

    pool: Annotated[str, about("Name of the pool.")]
    number: Annotated[int, about("Number of the revision.")]
    digest: Annotated[str, about("Digest of all that a replica of the revision runs.")]
    weights: Annotated[str, about("Digest of the base model's weights.")]
    engine: Annotated[str, about("Engine with its version and device.")]
    settings: Annotated[dict[str, int | str], _Settings]
    environment: Annotated[dict[str, str], about("Variables that a replica of the revision needs beside its secrets.")]
    created_by: Annotated[str, about("Id of the key that added it.")]
    created_at: Annotated[datetime, fields.CREATED_AT]


class PoolDecisionView(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the number of replicas that a pool should have."""

    id: Annotated[int, about("Number of the decision; a later one is larger.")]
    replicas_before: Annotated[int, about("Replicas that the pool should have had before.")]
    replicas: Annotated[int, about("Replicas that the pool should have since then.")]
    reason: Annotated[
        str,
        about(
            "Signal that asked for most replicas (requests, pages, prefill, decode, slots, latency, redundancy, "
            "forecast), `less load`, `bounds` for a change of replicas_min or replicas_max, or `first`."
        ),
    ]
    inputs: Annotated[
        dict[str, Any],
        about("What it was computed from: the signals, how many replicas each of them asked for, and the settings."),
    ]
    created_at: Annotated[datetime, fields.CREATED_AT]


class TenantDemandView(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant's batch requests, or its others, hold and wait for on the replicas of a base model."""

    base_model: Annotated[str, fields.BASE_MODEL]
    tenant_id: Annotated[str, fields.TENANT_ID]
    tenant: Annotated[str | None, about("Name of the tenant.")]
    is_batch: Annotated[bool, about("Whether these are its batch requests, which leave room to all others.")]
    tier: Annotated[int | None, about("Tier of its plan: a smaller one goes first. Null for batch.")]
    weight: Annotated[int, fields.WEIGHT]
    held_pages: Annotated[int, about("KV pages that its running requests hold.")]
    waiting_pages: Annotated[int, about("KV pages that its waiting requests may take.")]
    waiting_requests: Annotated[int, about("Requests that wait for a replica.")]
    longest_wait_ms: Annotated[int, about("Milliseconds that the oldest of them has waited.")]


class TenantDemandList(msgspec.Struct, frozen=True, kw_only=True):
    """The tenants with running or waiting requests. Each gateway reports every second those with the longest waits and
    the most pages.
    """

    gateways: Annotated[int, about("Live gateways.")]
    gateways_without_report: Annotated[int, about("Those whose requests are missing here.")]
    data: Annotated[Sequence[TenantDemandView], fields.DATA]
