"""The doctor's differences: none if everything agrees, else each disagreement with its place and its fix."""

import msgspec
import pytest

from core.contracts.replicas import ReplicaStatus, Residency
from core.contracts.revocations import Revocation
from core.contracts.routes import AdapterRoute, RevisionRoute
from core.contracts.snapshots import GatewayStatus
from data_plane.engine.control_protocol import EngineInventory, MemoryContents, SlotContents
from tenora.doctor.command import lasting
from tenora.doctor.compare import Look, ReplicaLook, findings

NAME, DIGEST = "ad_1@" + "a" * 64, "a" * 64
ROUTE = AdapterRoute(
    adapter_id="ad_1", tenant_id="tn_1", name="bot", base_model="m", created_at_ms=1, newest="rev_1", aliases={},
    revisions={"rev_1": RevisionRoute(id="rev_1", digest=DIGEST, rank=8, rank_class=16)},
)  # fmt: skip
REVOKED = Revocation(id="rvk_1", adapter_id="ad_9", base_model="m", engine_names=("ad_9@" + "9" * 64,))
TRUTH = EngineInventory(
    slots=(SlotContents(0, 1, NAME, False), SlotContents(1, None, None, True)), memory=(MemoryContents(1, NAME),),
    names=(NAME,), disk=(DIGEST,), revoked=(REVOKED.adapter_id,),
)  # fmt: skip
STATUS = ReplicaStatus(
    id="rep_1", url="http://x", base_model="m", state="ready", boot_id="b", block_tokens=16, pages_total=1,
    pages_free=1, slots=2, running_requests=0, waiting_requests=0, heartbeat_ms=0, residency_version=4,
)  # fmt: skip
RESIDENCY = Residency(replica_id="rep_1", boot_id="b", version=4, slots=(NAME, None), memory=(NAME,), disk=(DIGEST,))
HEALTHY = Look(
    replicas=(ReplicaLook(status=STATUS, residency=RESIDENCY, truth=TRUTH),),
    gateways=(GatewayStatus(id="gw_1", epoch="e", generation=7, heartbeat_ms=1),),
    position=("e", 7),
    published={"adapters": {"tn_1/bot": "route"}, "keys": {"hash": "grant"}},
    stored={"adapters": {"tn_1/bot": "route"}, "keys": {"hash": "grant"}},
    revocations=(REVOKED,),
    routes={"tn_1/bot": ROUTE},
    aliases={("tn_1/bot:prod", "rev_1"): True},
)


def look(**changes) -> Look:
    return Look(**{**{name: getattr(HEALTHY, name) for name in HEALTHY.__dataclass_fields__}, **changes})


def replica(*, truth: dict | None = None, residency: dict | None = None, status: dict | None = None) -> Look:
    changed = ReplicaLook(
        status=msgspec.structs.replace(STATUS, **(status or {})),
        residency=msgspec.structs.replace(RESIDENCY, **(residency or {})),
        truth=msgspec.structs.replace(TRUTH, **(truth or {})),
    )
    return look(replicas=(changed,))


def test_full_agreement_gives_no_finding():
    assert findings(HEALTHY) == []


STRAY = (SlotContents(0, 1, NAME, False), SlotContents(1, None, None, False))
GONE = "ad_9@" + "9" * 64


@pytest.mark.parametrize(
    ("changed", "where", "what"),
    [
        (look(position=None), "snapshot", "nothing is published"),
        (look(published={"keys": {"hash": "grant"}}), "snapshot adapters tn_1/bot", "not published"),
        (look(stored={"adapters": {"tn_1/bot": "route"}, "keys": {}}), "snapshot keys", "not in Postgres"),
        (look(stored={"adapters": {"tn_1/bot": "new"}}), "snapshot adapters tn_1/bot", "differs"),
        (
            look(routes={"x": msgspec.structs.replace(ROUTE, adapter_id="ad_9")}),
            "adapter x",
            "revoked but still routed",
        ),
        (look(aliases={("tn_1/bot:prod", "rev_1"): False}), "alias tn_1/bot:prod", "rev_1"),
        (look(gateways=()), "gateways", "no gateway is alive"),
        (look(position=("e", 8)), "gateway gw_1", "behind"),
        (look(position=("f", 1)), "gateway gw_1", "epoch"),
        (look(replicas=(ReplicaLook(status=STATUS, residency=RESIDENCY, truth="no"),)), "replica rep_1", "answer"),
        (look(replicas=(ReplicaLook(status=STATUS, residency=None, truth=TRUTH),)), "replica rep_1", "residency"),
        (replica(residency={"boot_id": "another"}), "replica rep_1", "residency"),
        (replica(status={"state": "unhealthy"}), "replica rep_1", "generates no tokens"),
        (replica(status={"reason": "no bucket"}), "replica rep_1", "cannot load further adapters: no bucket"),
        (replica(status={"reason": "no bucket", "state": "starting"}), "replica rep_1", "is not ready: no bucket"),
        (replica(residency={"slots": (None, None)}), "replica rep_1 slot 0", "another adapter"),
        (replica(residency={"memory": ()}), "replica rep_1 memory", f"holds {NAME}"),
        (replica(residency={"disk": (DIGEST, "b" * 64)}), "replica rep_1 disk", "does not hold"),
        (replica(truth={"slots": STRAY}), "replica rep_1 slot 1", "not zeroed"),
        (replica(truth={"revoked": ()}), "replica rep_1", f"does not refuse {GONE}"),
        (replica(truth={"names": (NAME, GONE)}), "replica rep_1", f"still holds {GONE}"),
        (replica(truth={"disk": (DIGEST, "9" * 64)}, residency={"disk": (DIGEST, "9" * 64)}), "replica rep_1", "disk"),
    ],
    ids=lambda value: None if isinstance(value, Look) else value,
)
def test_each_disagreement_is_found_once_with_its_place_and_a_fix(changed, where, what):
    (found,) = findings(changed)
    assert (found.where, what in found.what) == (where, True)
    assert found.fix


def test_a_digest_that_another_adapter_serves_is_not_left_over():
    twin = msgspec.structs.replace(REVOKED, engine_names=(f"ad_9@{DIGEST}",))
    assert findings(look(revocations=(twin,), replicas=(
        ReplicaLook(
            status=STATUS, residency=RESIDENCY, truth=msgspec.structs.replace(TRUTH, revoked=(twin.adapter_id,))
        ),
    ))) == []  # fmt: skip


def test_only_differences_seen_by_both_looks_count():
    behind = [findings(look(position=("e", generation))) for generation in (8, 9)]
    assert lasting(*behind) == behind[1]  # still behind, but by less
    assert lasting(findings(look(gateways=())), behind[0]) == []


def test_no_key_is_shown():
    assert not any("hash" in str(found) for found in findings(look(stored={"keys": {}})))
