"""What a drain takes away: a base model without another ready replica, and adapters whose rank no other one loads."""

import pytest

from control_plane.fleet.drains import unserved_without
from control_plane.fleet.schemas import ReplicaView
from core import clock


def replica(name: str, rank_max: int = 16, *, state="ready", base_model="m", draining: bool = False) -> ReplicaView:
    return ReplicaView(
        id=name, boot_id="boot_1", node="", copy="", pool="", revision="", base_model=base_model, state=state,
        reason=None, drain_requested=draining, block_tokens=32,
        pages_total=1, pages_free=1, slots=1, rank_max=rank_max, memory_adapters=1, residency_version=1,
        counted_tokens=0, running_requests=0, waiting_requests=0, url="http://x", heartbeat_at=clock.now(),
    )  # fmt: skip


MINE = replica("mine")
MODEL, RANK_16 = ["base model m"], ["adapters of rank class 16 of m"]


@pytest.mark.parametrize(
    ("mine", "others", "needed", "lost"),
    [
        (MINE, [], (), MODEL),
        (MINE, [replica("b")], (16,), []),
        (MINE, [replica("b", state="starting")], (), MODEL),
        (MINE, [replica("b", state="unhealthy")], (), MODEL),
        (MINE, [replica("b", state="draining")], (), MODEL),
        (MINE, [replica("b", draining=True)], (), MODEL),
        (MINE, [replica("b", base_model="another")], (), MODEL),
        (MINE, [replica("b", 8)], (8, 16), RANK_16),
        (MINE, [replica("b", 8)], (8,), []),
        (MINE, [replica("b", 64)], (8, 16), []),
        (MINE, [replica("b", 8)], (64,), []),
        (replica("mine", state="starting"), [], (16,), []),
        (replica("mine", state="unhealthy"), [], (16,), []),
    ],
)
def test_only_what_no_other_ready_replica_serves_is_lost(mine, others, needed, lost):
    assert unserved_without(mine, others, needed) == lost
