"""The residency that an agent publishes: from the engine's table and the cache folder; each change gets a version."""

import msgspec
import pytest
from prometheus_client import REGISTRY

from data_plane.engine.agent.residency_watch import DigestsOnDisk, ResidencyWatch
from data_plane.engine.residency import RESIDENCY_FILE, EngineResidency, LoadRecord

DIGESTS = ["a" * 64, "b" * 64]


def table(**changes) -> EngineResidency:
    fields = {
        "started_at_ms": 1, "version": 1, "slots": ("ad_1@a", None), "memory": ("ad_1@a",),
        "staged": ("ad_2@b",), "pinned": (), "failed": (), "slot_evictions": 0, "memory_evictions": 0, "loads": (),
    }  # fmt: skip
    return EngineResidency(**{**fields, **changes})


def write(folder, found: EngineResidency) -> None:
    (folder / "new").write_bytes(msgspec.json.encode(found))
    (folder / "new").replace(folder / RESIDENCY_FILE)


@pytest.fixture
def watch(tmp_path) -> ResidencyWatch:
    (tmp_path / "cache").mkdir()
    return ResidencyWatch(tmp_path, tmp_path / "cache", replica_id="rep_1", boot_id="boot_1")


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_the_version_counts_changes_and_nothing_else(watch, tmp_path):
    await watch.scan()
    assert (watch.current, watch.version) == (None, 0)
    write(tmp_path, table())
    await watch.scan()
    assert (watch.current.slots, watch.current.memory) == (("ad_1@a", None), ("ad_1@a", "ad_2@b"))
    assert watch.version == 1
    write(tmp_path, table(version=2))  # the engine's own version changed, the residency did not
    await watch.scan()
    assert watch.version == 1
    (tmp_path / "cache" / DIGESTS[0]).mkdir()
    await watch.scan()
    assert (watch.version, watch.current.disk) == (2, (DIGESTS[0],))


async def test_loads_are_counted_once_and_those_that_left_the_table_as_unseen(watch, tmp_path):
    def load(seq: int, *, in_step: bool) -> LoadRecord:
        return LoadRecord(seq=seq, name="ad_1@a", kind="slot", ms=20.0, in_step=in_step, at_ms=1)

    loads, stalls = (sample(f"tenora_replica_{name}_seconds_count", to="slot") for name in ("load", "stall"))
    unseen, evictions = (
        sample("tenora_replica_loads_unseen_total"),
        sample("tenora_replica_evictions_total", tier="slot"),
    )
    write(tmp_path, table(loads=(load(1, in_step=True), load(2, in_step=False)), slot_evictions=3))
    await watch.scan()
    await watch.scan()
    write(tmp_path, table(loads=(load(5, in_step=True),), slot_evictions=4))  # 3 and 4 left the table in between
    await watch.scan()
    assert sample("tenora_replica_load_seconds_count", to="slot") == loads + 3
    assert sample("tenora_replica_stall_seconds_count", to="slot") == stalls + 2
    assert sample("tenora_replica_loads_unseen_total") == unseen + 2
    assert sample("tenora_replica_evictions_total", tier="slot") == evictions + 4


def test_the_cache_folder_shows_whole_adapters_only_and_every_change_at_once(tmp_path):
    disk = DigestsOnDisk(tmp_path / "cache")
    assert disk.now() == ()
    (tmp_path / "cache" / ".incoming" / DIGESTS[0]).mkdir(parents=True)
    assert disk.now() == ()
    for number in range(50):  # within one tick of the file system's clock
        (tmp_path / "cache" / DIGESTS[0]).mkdir()
        assert disk.now() == (DIGESTS[0],), number
        (tmp_path / "cache" / DIGESTS[0]).rmdir()
        assert disk.now() == (), number
