"""The Redis users of Tenora's processes, and the keys that each may read and write.

``python -m control_plane redis-acl`` prints them for a server of your own; the one-machine stack sets them itself. So a
replica that is taken over cannot publish a snapshot or report usage, and a gateway can change no route and no key.
"""

from collections.abc import Mapping
from typing import Final

WEB: Final = "tenora_web"
WORKER: Final = "tenora_worker"
GATEWAY: Final = "tenora_gateway"
REPLICA: Final = "tenora_replica"
BILLING: Final = "tenora_billing"
PLACER: Final = "tenora_placer"
USERS: Final = (WEB, WORKER, GATEWAY, REPLICA, BILLING, PLACER)

_COMMANDS: Final = (
    "-@all +@read +@write +@connection +@transaction +eval +evalsha +script|load +time -@dangerous -scan -randomkey"
)
_FURTHER: Final = {BILLING: "+info"}  # it learns from the run id that the server has restarted

_READS: Final[Mapping[str, tuple[str, ...]]] = {
    WEB: ("tenora:*",),
    WORKER: ("tenora:*",),
    GATEWAY: (
        "tenora:snapshot*", "tenora:blob:*", "tenora:replicas", "tenora:replica:*", "tenora:usage:recorded",
        "tenora:fleet:wanted",
    ),
    REPLICA: ("tenora:snapshot*", "tenora:prefetch"),
    BILLING: ("tenora:snapshot*",),
    PLACER: ("tenora:fleet:wanted",),
}  # fmt: skip
_WRITES: Final[Mapping[str, tuple[str, ...]]] = {
    WEB: ("tenora:replica:*:drain", "tenora:prefetch"),
    WORKER: (
        "tenora:snapshot*", "tenora:blob:*", "tenora:canary:*", "tenora:revocation:*", "tenora:fleet:*",
        "tenora:requests",
    ),
    GATEWAY: (
        "tenora:quota:*", "tenora:held:*", "tenora:leased", "tenora:usage", "tenora:gateways", "tenora:gateway:*",
        "tenora:prefetch", "tenora:requests",
    ),
    REPLICA: (
        "tenora:replicas", "tenora:replica:*", "tenora:engine_usage", "tenora:cost_windows", "tenora:canary:*",
        "tenora:revocation:*",
    ),
    BILLING: (
        "tenora:usage", "tenora:usage:*", "tenora:quota:*", "tenora:engine_usage", "tenora:cost_windows",
    ),
    PLACER: (),
}  # fmt: skip
"""Key patterns as in ``core.redis_keys``. A user may read what it may write."""


def user_rules(user: str) -> str:
    """The rules of one of ``USERS`` as an ACL file or ``ACL SETUSER`` takes them, without a password."""
    reads = " ".join(f"%R~{pattern}" for pattern in _READS[user])
    writes = " ".join(f"~{pattern}" for pattern in _WRITES[user])
    return f"resetkeys resetchannels {reads} {writes} {_COMMANDS} {_FURTHER.get(user, '')}".rstrip()
