"""Wire types of the fleet room."""

from datetime import datetime
from typing import Annotated

import msgspec

from core import fields
from core.contracts.replicas import CordonKind
from core.fields import about


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """A replica as its agent last reported it. ``rank_max`` is its rank class, ``memory_adapters`` is the number of
    adapters in its host memory, and ``residency_version`` changes whenever an adapter moves between tiers. An admin
    sets ``drain_requested``; the agent reports ``state``, and in ``reason`` what is wrong with the replica.
    """

    id: Annotated[str, fields.ID]
    boot_id: Annotated[str, fields.BOOT_ID]
    base_model: Annotated[str, fields.BASE_MODEL]
    state: Annotated[
        str, about("State of the replica: starting, ready, draining, unhealthy, failed, or one of a newer version.")
    ]
    reason: Annotated[
        str | None, about("What is wrong with it, and the fix; null when nothing is. A ready replica still serves.")
    ]
    drain_requested: Annotated[bool, about("Whether an admin has asked the replica to take no further requests.")]
    block_tokens: Annotated[int, about("Tokens of one block of the replica's KV cache.")]
    pages_total: Annotated[int, about("KV pages of the replica.")]
    pages_free: Annotated[int, about("KV pages that are free.")]
    slots: Annotated[int, about("Adapters that one batch of the replica can use.")]
    rank_max: Annotated[int, fields.LARGEST_RANK]
    memory_adapters: Annotated[int, about("Adapters that fit into the replica's host memory.")]
    residency_version: Annotated[int, about("Number of the replica's newest list of adapters.")]
    running_requests: Annotated[int, about("Requests that run on the replica.")]
    waiting_requests: Annotated[int, about("Requests that wait on the replica.")]
    node: Annotated[str, about("Name of the machine that the replica runs on.")]
    copy: Annotated[str, about("Name that a placer has for the replica, such as that of its pod; empty without one.")]
    pool: Annotated[str, about("Name of the replica's pool; empty without one.")]
    revision: Annotated[str, about("Digest of the pool revision that it runs or failed to run; empty without one.")]
    url: Annotated[str, about("Address of the engine, which only gateways reach.")]
    counted_tokens: Annotated[int, about("Tokens that the engine has counted since its start.")]
    heartbeat_at: Annotated[datetime, about("When the replica last reported.")]


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to drain. ``force`` also drains the last ready replica that serves a base model or a rank class."""

    force: Annotated[bool, about("Whether to drain it although nothing else serves what it serves.")] = False


class ResidencyView(msgspec.Struct, frozen=True, kw_only=True):
    """The adapters in each tier of a replica. ``disk`` lists digests, because several adapters may share one."""

    replica: Annotated[str, fields.REPLICA]
    boot_id: Annotated[str, fields.BOOT_ID]
    version: Annotated[int, fields.VERSION]
    slots: Annotated[list[str | None], about("Engine name of the adapter in each slot; null for a free slot.")]
    memory: Annotated[list[str], about("Engine names of the adapters in the replica's host memory.")]
    disk: Annotated[list[str], about("Digests of the adapters on the replica's disk.")]


class NewCordon(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cordon. ``force`` also takes the last ready replicas that serve a base model or a rank class."""

    reason: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=500, pattern=fields.ONE_LINE)],
        about("Why, for the next operator."),
    ]
    force: Annotated[bool, about("Whether to do it although nothing else serves what they serve.")] = False


class CordonView(msgspec.Struct, frozen=True, kw_only=True):
    """A replica or a node that gets no requests until the cordon is lifted, also after a restart."""

    kind: Annotated[CordonKind, about("What is cordoned: a replica, or all replicas of a node.")]
    name: Annotated[str, about("Id of the replica, or name of the node.")]
    reason: Annotated[str, about("Why.")]
    created_at: Annotated[datetime, about("When it was made.")]
