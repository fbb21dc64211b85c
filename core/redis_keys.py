"""Every Redis key and stream of the platform, as constants and functions. Nobody else spells one."""

from typing import Final

from core.contracts.snapshots import SnapshotKind

# Published by the control plane, read by gateways.
SNAPSHOT_META: Final = "tenora:snapshot"  # hash: epoch, generation
SNAPSHOT_CHANGES: Final = "tenora:snapshot:changes"  # stream of SnapshotChange in field "change"
SNAPSHOT_CHANGES_MAX: Final = 10_000
SNAPSHOT_UNSURE: Final = "tenora:snapshot:unsure"  # for a while after Redis lost data, and heartbeats with it

# Written by agents.
REPLICAS: Final = "tenora:replicas"  # sorted set: replica id by heartbeat in Unix milliseconds
ENGINE_COUNTERS: Final = "tenora:engine_counters"  # hash: "<replica id>/<boot id>" -> EngineCounters

# Written by gateways, read by billing.
USAGE_STREAM: Final = "tenora:usage"  # stream of UsageEvent in field "event"
USAGE_GROUP: Final = "billing"
USAGE_DEAD_LETTERS: Final = "tenora:usage:dead"
# Set by billing: all of the stream before this entry is in the ledger, or among the dead letters.
USAGE_RECORDED: Final = "tenora:usage:recorded"
QUOTAS_REBUILT: Final = "tenora:quota:rebuilt"  # run id of the server to which billing gave all that was used

# Between gateways.
LEASED_TENANTS: Final = "tenora:leased"  # sorted set: tenant id by the Unix millisecond of its next expiry, or before
PLATFORM_QUOTA: Final = "tenora:quota:platform"  # hash like a tenant's, of everything that is in flight

# Between the control plane's worker and the agents.
CANARY_RESULTS: Final = "tenora:canary:results"  # list of CanaryResult
PREFETCH_HINTS: Final = "tenora:prefetch"  # stream of PrefetchHint in field "hint"
PREFETCH_HINTS_MAX: Final = 1_000

# Written by gateways, read by the control plane.
GATEWAYS: Final = "tenora:gateways"  # sorted set: gateway id by heartbeat in Unix milliseconds
GATEWAYS_LEASE_S_MAX: Final = 60  # for no longer than this one may serve after its heartbeat


def snapshot(kind: SnapshotKind) -> str:
    """Hash of encoded structs of one kind."""
    return f"tenora:snapshot:{kind}"


def snapshot_staging(kind: SnapshotKind, epoch: str) -> str:
    """Where a rebuilt snapshot is written before it takes the place of the old one in one step."""
    return f"tenora:snapshot:{kind}:{epoch}"


def blob(sha256: str) -> str:
    """Content-addressed bytes that gateways need, such as a tokenizer."""
    return f"tenora:blob:{sha256}"


def replica(replica_id: str) -> str:
    """ReplicaStatus, expiring when its agent stops."""
    return f"tenora:replica:{replica_id}"


def replica_drain(replica_id: str) -> str:
    """Set while an admin wants the replica drained."""
    return f"tenora:replica:{replica_id}:drain"


def replica_held(replica_id: str) -> str:
    """Sorted set: request id by the Unix millisecond at which its hold on a replica's pages expires."""
    return f"tenora:held:{{{replica_id}}}"


def replica_held_pages(replica_id: str) -> str:
    """Hash: request id by the KV pages it holds on a replica, and their ``total``."""
    return f"tenora:held:{{{replica_id}}}:pages"


def tenant_quota(tenant_id: str) -> str:
    """Hash: theoretical arrival times, what requests in work hold, tokens and nanodollars of the month and in all."""
    return f"tenora:quota:{{{tenant_id}}}"


def key_quota(tenant_id: str, key_id: str) -> str:
    """The same of one key that has limits of its own."""
    return f"tenora:quota:{{{tenant_id}}}:key:{key_id}"


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
    """What became of the request with an Idempotency-Key; the digest is of API key and Idempotency-Key."""
    return f"tenora:quota:{{{tenant_id}}}:idempotent:{digest}"


def idempotent_answers(tenant_id: str) -> str:
    """Sorted set: keys of a tenant's kept answers by the Unix millisecond at which each was kept."""
    return f"tenora:quota:{{{tenant_id}}}:idempotent"


def replica_residency(replica_id: str) -> str:
    """Residency of a replica, rewritten whenever it changes; it expires with the status."""
    return f"tenora:replica:{replica_id}:residency"


def gateway(gateway_id: str) -> str:
    """GatewayStatus, expiring when the gateway stops."""
    return f"tenora:gateway:{gateway_id}"


def gateway_backlog(gateway_id: str, base_model: str) -> str:
    """Backlog of a gateway on the replicas of a base model, for the other gateways; it expires soon."""
    return f"tenora:gateway:{gateway_id}:backlog:{base_model}"


def gateway_mark(gateway_id: str) -> str:
    """Set by a gateway that wants to know when Redis has lost its data."""
    return f"tenora:gateway:{gateway_id}:mark"


def revocation_receipts(revocation_id: str) -> str:
    """Hash: replica id -> RevocationReceipt."""
    return f"tenora:revocation:{revocation_id}:receipts"


def canary_jobs(base_model: str, rank_class: int) -> str:
    """List of CanaryJob for the replicas of one pool. A job that gets lost is put there again."""
    return f"tenora:canary:{base_model}:{rank_class}:jobs"


def canary_running(revision_id: str) -> str:
    """CanaryRunning, from when a replica takes the revision's job until it has answered."""
    return f"tenora:canary:running:{revision_id}"


def adapter_heat(base_model: str, rank_max: int) -> str:
    """Sorted set: engine name by the Unix millisecond of its last use on the replicas whose largest rank this is,
    trimmed to the newest.
    """
    return f"tenora:heat:{base_model}:{rank_max}"
