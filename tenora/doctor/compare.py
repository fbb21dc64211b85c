"""Pure comparisons of what is published with what the engines and Postgres report, for `tenora doctor`.

Nothing is read here. A finding names a place and a fact without changing numbers, so that two checks can agree on it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from core.contracts.replicas import ReplicaStatus, Residency
from core.contracts.revocations import Revocation
from core.contracts.routes import AdapterRoute
from core.contracts.snapshots import GatewayStatus
from data_plane.engine.control_protocol import EngineInventory

_AGENT_FIX = "restart the replica; its agent publishes everything again"
_PUBLISH_FIX = "run `python -m control_plane publish`, which publishes everything again"


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. ``detail`` may differ between checks; it is not part of the comparison."""

    where: str
    what: str
    fix: str
    detail: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLook:
    """What a replica published and what its engine reports; ``truth`` is an error text when it did not answer, and
    None before its engine has started and after it has failed.
    """

    status: ReplicaStatus
    residency: Residency | None
    truth: EngineInventory | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Everything as of about one moment. ``published`` and ``stored`` are values by kind and field; ``aliases`` maps
    each pair of alias and revision in Postgres to whether that revision is ready.
    """

    replicas: tuple[ReplicaLook, ...]
    gateways: tuple[GatewayStatus, ...]
    position: tuple[str, int] | None
    published: Mapping[str, Mapping[str, str]]
    stored: Mapping[str, Mapping[str, str]]
    revocations: tuple[Revocation, ...]
    routes: Mapping[str, AdapterRoute]
    aliases: Mapping[tuple[str, str], bool]


def findings(look: Look) -> list[Finding]:
    """Every difference, in the order of a request's path: published state, gateways, replicas."""
    return [
        *_snapshot(look),
        *_aliases(look),
        *_gateways(look),
        *(found for replica in look.replicas for found in _replica(replica)),
        *(found for replica in look.replicas for found in _revoked(replica, look)),
    ]


def _snapshot(look: Look) -> Iterator[Finding]:
    if look.position is None:
        yield Finding("snapshot", "nothing is published", _PUBLISH_FIX)
    for kind, stored in look.stored.items():
        published = look.published.get(kind, {})
        for name in sorted(stored.keys() | published.keys()):
            if stored.get(name) == published.get(name):
                continue
            # The hash of a key is not shown.
            where = f"snapshot {kind}" if kind == "keys" else f"snapshot {kind} {name}"
            if name not in published:
                yield Finding(where, "is in Postgres but not published", _PUBLISH_FIX)
            elif name not in stored:
                yield Finding(where, "is published but not in Postgres", _PUBLISH_FIX)
            else:
                yield Finding(where, "differs from Postgres", _PUBLISH_FIX)
    revoked = {revocation.adapter_id for revocation in look.revocations}
    for name, route in look.routes.items():
        if route.adapter_id in revoked:
            yield Finding(f"adapter {name}", "is revoked but still routed", _PUBLISH_FIX)


def _aliases(look: Look) -> Iterator[Finding]:
    for (alias, revision_id), is_ready in look.aliases.items():
        if not is_ready:
            yield Finding(
                f"alias {alias}",
                f"points at {revision_id}, which is not a ready revision of its adapter",
                f"point it at a ready revision: PUT /api/v1/adapters/…/aliases/{alias.rpartition(':')[2]}",
            )


def _gateways(look: Look) -> Iterator[Finding]:
    if not look.gateways:
        yield Finding("gateways", "no gateway is alive", "start one: python -m data_plane gateway")
    for gateway in look.gateways:
        where = f"gateway {gateway.id}"
        if look.position is None:
            continue
        epoch, generation = look.position
        if gateway.epoch != epoch:
            yield Finding(where, "has applied another epoch of the snapshot", "restart it", gateway.epoch)
        elif gateway.generation < generation:
            detail = f"{gateway.generation} of {generation}"
            yield Finding(
                where, "is behind: it has not applied the newest changes", "restart it if it stays behind", detail
            )


def _replica(replica: ReplicaLook) -> Iterator[Finding]:
    status, published, truth = replica.status, replica.residency, replica.truth
    where = f"replica {status.id}"
    if status.state == "unhealthy":
        yield Finding(where, "generates no tokens", "its agent replaces the engine; see its log")
    if status.reason:
        what = "cannot load further adapters" if status.state == "ready" else "is not ready"
        fix = "do what the reason says; a replica reads changed settings when it starts"
        yield Finding(where, f"{what}: {status.reason}", fix)
    if isinstance(truth, str):
        yield Finding(where, "its engine does not answer", f"check that {status.url} is reachable from here", truth)
    elif truth is not None:
        if published is None or published.boot_id != status.boot_id:
            yield Finding(where, "publishes no residency for its running engine", _AGENT_FIX)
        else:
            yield from _tiers(where, published, truth)


def _tiers(where: str, published: Residency, truth: EngineInventory) -> Iterator[Finding]:
    for index in range(max(len(published.slots), len(truth.in_slots))):
        said, found = _at(published.slots, index), _at(truth.in_slots, index)
        if said != found:
            yield Finding(
                f"{where} slot {index}", "holds another adapter than it publishes", _AGENT_FIX, f"{said}; {found}"
            )
    for tier, said_names, found_names in (
        ("memory", frozenset(published.memory), truth.in_memory),
        ("disk", frozenset(published.disk), frozenset(truth.disk)),
    ):
        for name in sorted(found_names - said_names):
            yield Finding(f"{where} {tier}", f"holds {name} but does not publish it", _AGENT_FIX)
        for name in sorted(said_names - found_names):
            yield Finding(f"{where} {tier}", f"publishes {name} but does not hold it", _AGENT_FIX)
    for slot in truth.slots:
        if slot.name is None and not slot.zeroed:
            yield Finding(f"{where} slot {slot.index}", "is free but not zeroed", "restart the replica")


def _revoked(replica: ReplicaLook, look: Look) -> Iterator[Finding]:
    truth = replica.truth
    if truth is None or isinstance(truth, str):
        return
    served = {revision.digest for route in look.routes.values() for revision in route.revisions.values()}
    fix = "read the replica's log for the reason; restart the replica if the adapter stays"
    for revocation in look.revocations:
        if revocation.base_model != replica.status.base_model:
            continue
        for name in revocation.engine_names:
            where = f"replica {replica.status.id}"
            if not truth.refuses(name):
                yield Finding(where, f"does not refuse {name}, which is revoked", fix)
            if name in truth.known:
                yield Finding(where, f"still holds {name}, which is revoked", fix)
            digest = name.rpartition("@")[2]
            if digest in truth.disk and digest not in served:
                yield Finding(where, f"still has {digest} of a revoked adapter on its disk", fix)


def _at(names: tuple[str | None, ...], index: int) -> str | None:
    return names[index] if index < len(names) else None
