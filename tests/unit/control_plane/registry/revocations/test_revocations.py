"""Which replicas a revocation awaits and how far it has progressed, from plain values."""

from datetime import UTC, datetime

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from control_plane.registry.models import AdapterRevocation
from control_plane.registry.revocations.receipts import awaited_replicas, merge_receipts
from control_plane.registry.revocations.views import state_of
from core.contracts.replicas import ReplicaStatus
from core.contracts.revocations import RevocationReceipt

NOW = datetime(2026, 11, 20, tzinfo=UTC)
MINE = "ad_1@" + "a" * 64


def status(replica: str, *, boot: str = "boot_1", base_model: str = "tiny") -> ReplicaStatus:
    return ReplicaStatus(
        id=replica, url="", base_model=base_model, state="ready", boot_id=boot, block_tokens=16, pages_total=1,
        pages_free=1, slots=1, running_requests=0, waiting_requests=0, heartbeat_ms=0,
    )  # fmt: skip


def receipt(replica: str, *, boot: str = "boot_1", state: str = "removed", at_ms: int = 1, **places) -> bytes:
    return msgspec.json.encode(
        RevocationReceipt(
            revocation_id="rvk_1",
            replica_id=replica,
            boot_id=boot,
            state=state,
            drained_requests=0,
            aborted_requests=0,
            **{"in_slots": (), "in_memory": (), "on_disk": ()} | places,
            at_ms=at_ms,
        )
    )


def collect(answered: dict[str, bytes], known: dict | None = None) -> dict:
    encoded = {replica.encode(): value for replica, value in answered.items()}
    return merge_receipts(known or {}, encoded, revocation_id="rvk_1", engine_names=[MINE])


def test_a_replica_is_awaited_until_its_current_engine_confirms_that_nothing_is_left():
    receipts = collect(
        {
            "done": receipt("done"),
            "draining": receipt("draining", state="draining"),
            "restarted": receipt("restarted", boot="boot_0"),
        }
    )
    alive = [status(name) for name in ("done", "draining", "restarted", "silent")]
    assert awaited_replicas("tiny", receipts, alive) == ["draining", "restarted", "silent"]


def test_replicas_of_another_base_model_are_not_awaited():
    assert awaited_replicas("tiny", {}, [status("other", base_model="large")]) == []


def test_a_receipt_shows_no_name_but_the_revoked_ones():
    other = "ad_2@" + "b" * 64
    shown = collect({"r": receipt("r", in_slots=(MINE, other), in_memory=(other,), on_disk=("a" * 64, "b" * 64))})["r"]
    assert (shown["in_slots"], shown["in_memory"], shown["on_disk"]) == ([MINE], [], ["a" * 64])


def test_receipts_of_other_revocations_or_replicas_are_left_out():
    foreign = msgspec.json.encode(msgspec.json.decode(receipt("r")) | {"revocation_id": "rvk_2"})
    assert collect({"r": foreign, "s": b"{", "t": receipt("u"), "v": b"\xff\x00"}) == {}


@given(st.permutations([receipt("r", at_ms=at, state=state) for at, state in ((1, "draining"), (2, "removed"))]))
def test_the_newest_receipt_of_a_replica_counts_in_any_order(arrived):
    receipts: dict = {}
    for encoded in arrived:
        receipts = collect({"r": encoded}, receipts)
    assert receipts["r"]["state"] == "removed"


def test_each_step_has_its_name():
    row = AdapterRevocation(tenant_id="t", adapter_id="a", reason="deleted", engine_names=[MINE])
    seen = [state_of(row)]
    for change in ({"receipts": {"r": {}}}, {"unloaded_at": NOW}, {"removed_at": NOW}):
        for name, value in change.items():
            setattr(row, name, value)
        seen.append(state_of(row))
    assert seen == ["stopping", "draining", "quarantined", "removed"]
    suspended = AdapterRevocation(tenant_id="t", adapter_id="a", reason="suspended", engine_names=[MINE])
    suspended.unloaded_at = NOW
    assert state_of(suspended) == "unloaded"
    suspended.lifted_at = NOW
    assert state_of(suspended) == "lifted"
