"""Every Redis key and stream of the platform, as constants and functions. No other module spells a key."""

from typing import Final

from core import clock
from core.contracts.snapshots import SnapshotKind

# Published by the control plane, read by gateways.
SNAPSHOT_META: Final = "tenora:snapshot"  # hash: epoch, generation
SNAPSHOT_CHANGES: Final = "tenora:snapshot:changes"  # stream of SnapshotChange in field "change"
SNAPSHOT_CHANGES_MAX: Final = 10_000
SNAPSHOT_UNSURE: Final = "tenora:snapshot:unsure"  # set for some time after Redis lost data and heartbeats

# Written by agents.
REPLICAS: Final = "tenora:replicas"  # sorted set: replica id by heartbeat in Unix milliseconds
DRAIN_LASTS_S: Final = 7 * 86_400  # after the drained boot's last heartbeat
ENGINE_USAGE: Final = "tenora:engine_usage"  # stream of EngineUsageReport in field "report", which billing stores
COST_WINDOWS: Final = "tenora:cost_windows"  # stream of CostWindow in field "window", which billing stores and removes

# Written by gateways, read by billing.
USAGE_STREAM: Final = "tenora:usage"  # stream of UsageEvent in field "event"
USAGE_GROUP: Final = "billing"
USAGE_DEAD_LETTERS: Final = "tenora:usage:dead"
# Set by billing: every entry before this id is in the ledger or among the dead letters.
USAGE_RECORDED: Final = "tenora:usage:recorded"
QUOTAS_REBUILT: Final = "tenora:quota:rebuilt"  # run id of the Redis server whose quotas billing has rebuilt

# Written by gateways, read and removed by the control plane's worker.
REQUEST_LOG: Final = "tenora:requests"  # stream: a UsageEvent and RequestDetails, or a list of refused LoggedRequests
REQUEST_LOG_GROUP: Final = "request-log"

# Between gateways.
LEASED_TENANTS: Final = "tenora:leased"  # sorted set: tenant id by the Unix millisecond of its next expiry, or before
PLATFORM_QUOTA: Final = "tenora:quota:platform"  # hash like a tenant's, for all requests in flight

# Between the control plane's worker and the agents.
CANARY_RESULTS: Final = "tenora:canary:results"  # list of CanaryResult
PREFETCH_HINTS: Final = "tenora:prefetch"  # stream of PrefetchHint in field "hint"
PREFETCH_HINTS_MAX: Final = 1_000

# Written by the fleet process, read by placers and gateways.
FLEET_WANTED: Final = "tenora:fleet:wanted"  # hash: WantedPool by the pool's name

# Written by gateways, read by the control plane.
GATEWAYS: Final = "tenora:gateways"  # sorted set: gateway id by heartbeat in Unix milliseconds
GATEWAYS_LEASE_S_MAX: Final = 60  # a gateway serves for at most this long after its heartbeat


def snapshot(kind: SnapshotKind) -> str:
    """Hash of encoded structs of one kind."""
    return f"tenora:snapshot:{kind}"


def snapshot_staging(kind: SnapshotKind, epoch: str) -> str:
    """Where a rebuilt snapshot is written before it replaces the old one atomically."""
    return f"tenora:snapshot:{kind}:{epoch}"


def blob(sha256: str) -> str:
    """Content-addressed bytes that gateways need, such as a tokenizer."""
    return f"tenora:blob:{sha256}"


def replica(replica_id: str) -> str:
    """ReplicaStatus, expiring when its agent stops."""
    return f"tenora:replica:{replica_id}"


def replica_drain(replica_id: str) -> str:
    """While an admin drains the replica: the boot id that drains. A later boot serves."""
    return f"tenora:replica:{replica_id}:drain"


def replica_held(replica_id: str) -> str:
    """Sorted set: request id by the Unix millisecond at which its hold on a replica's pages expires."""
    return f"tenora:held:{{{replica_id}}}"


def replica_held_pages(replica_id: str) -> str:
    """Hash: request id by the KV pages it holds on a replica, and their ``total``."""
    return f"tenora:held:{{{replica_id}}}:pages"


def provider_spending(provider_id: str, unix_ms: int) -> str:
    """Nanodollars that requests in the UTC month of this instant cost, or may cost, at an outside provider."""
    return f"tenora:quota:provider:{provider_id}:{clock.from_ms(unix_ms):%Y-%m}"


def tenant_quota(tenant_id: str) -> str:
    """Hash: theoretical arrival times, reservations of running requests, tokens and nanodollars (month and total)."""
    return f"tenora:quota:{{{tenant_id}}}"


def key_quota(tenant_id: str, key_id: str) -> str:
    """The same hash for one API key that has its own limits."""
    return f"tenora:quota:{{{tenant_id}}}:key:{key_id}"


def spend_window_quota(tenant_id: str, scope: str, subject_id: str, window: str, start_ms: int) -> str:
    """The same hash for one window of a spending limit. It expires after the window."""
    return f"tenora:quota:{{{tenant_id}}}:window:{scope}:{subject_id}:{window}:{start_ms // 1000}"


def tenant_leases(tenant_id: str) -> str:
    """Sorted set: request id by the Unix millisecond at which its reservation expires."""
    return f"tenora:quota:{{{tenant_id}}}:leases"


def reservation(tenant_id: str, request_id: str) -> str:
    """Hash: what one request holds until it settles or expires."""
    return f"tenora:quota:{{{tenant_id}}}:reservation:{request_id}"


def settled(tenant_id: str, request_id: str) -> str:
    """Marker that a request has settled, so that a second settlement changes nothing."""
    return f"tenora:quota:{{{tenant_id}}}:settled:{request_id}"


def idempotent_request(tenant_id: str, digest: str) -> str:
    """The outcome of a request with an Idempotency-Key. ``digest`` covers the API key and the Idempotency-Key."""
    return f"tenora:quota:{{{tenant_id}}}:idempotent:{digest}"


def idempotent_answers(tenant_id: str, *, of_batches: bool = False) -> str:
    """Sorted set: keys of a tenant's stored answers by the Unix millisecond of their storage. Those to lines of batches
    have a set of their own, so that they do not replace the others.
    """
    return f"tenora:quota:{{{tenant_id}}}:idempotent" + ("_lines" if of_batches else "")


def replica_residency(replica_id: str) -> str:
    """Residency of a replica, rewritten at each change. It expires with the status."""
    return f"tenora:replica:{replica_id}:residency"


def gateway(gateway_id: str) -> str:
    """GatewayStatus, expiring when the gateway stops."""
    return f"tenora:gateway:{gateway_id}"


def gateway_backlog(gateway_id: str, base_model: str) -> str:
    """A gateway's backlog on the replicas of a base model, read by the other gateways. It expires after seconds."""
    return f"tenora:gateway:{gateway_id}:backlog:{base_model}"


def gateway_demand(gateway_id: str) -> str:
    """GatewayDemand of a gateway, read by the fleet process. It expires after seconds."""
    return f"tenora:gateway:{gateway_id}:demand"


def gateway_mark(gateway_id: str) -> str:
    """Set by a gateway, which detects by its absence that Redis lost its data."""
    return f"tenora:gateway:{gateway_id}:mark"


def revocation_receipts(revocation_id: str) -> str:
    """Hash: replica id -> RevocationReceipt."""
    return f"tenora:revocation:{revocation_id}:receipts"


def canary_jobs(base_model: str, rank_class: int) -> str:
    """List of CanaryJob for the replicas of one pool. A lost job is added again."""
    return f"tenora:canary:{base_model}:{rank_class}:jobs"


def canary_running(revision_id: str) -> str:
    """CanaryRunning, from the claim of the revision's job until its result."""
    return f"tenora:canary:running:{revision_id}"
