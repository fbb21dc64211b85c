"""The residency table is read when it changes; a missing or damaged table is not an error."""

import os

import msgspec
import pytest

from data_plane.engine import residency
from data_plane.engine.residency import RESIDENCY_FILE, ResidencyReader, read_residency
from data_plane.engine.worker.residency_table import ResidencyTable


def write(folder, tiers):
    fresh = folder / "new"
    fresh.write_bytes(msgspec.json.encode(tiers.snapshot()))
    fresh.replace(folder / RESIDENCY_FILE)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]"])
def test_no_table_is_none(tmp_path, content):
    if content is not None:
        (tmp_path / RESIDENCY_FILE).write_bytes(content)
    assert read_residency(tmp_path) is None
    assert ResidencyReader(tmp_path).now() is None


def test_a_written_table_is_read_back(tmp_path):
    tiers: ResidencyTable[str] = ResidencyTable(slots=2)
    tiers.record_tables(slots=("a", None), memory=("b", "a"))
    tiers.acquire("c")
    tiers.stage("c", "weights")
    tiers.record_load("a", "slot", 1.5, in_step=True)
    write(tmp_path, tiers)
    table = read_residency(tmp_path)
    assert table == tiers.snapshot()
    assert table.in_memory == {"a", "b", "c"}


def test_a_table_that_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    tiers: ResidencyTable[str] = ResidencyTable(slots=1)
    write(tmp_path, tiers)
    reads = []
    monkeypatch.setattr(residency, "read_residency", lambda folder: reads.append(1) or read_residency(folder))
    reader = ResidencyReader(tmp_path)
    assert reader.now() == reader.now()
    assert len(reads) == 1
    tiers.record_failure("a")
    write(tmp_path, tiers)
    assert reader.now().failed == ("a",)
    assert len(reads) == 2
    (tmp_path / RESIDENCY_FILE).unlink()
    assert reader.now() is None


def test_a_new_table_is_read_even_if_its_times_size_and_inode_match_the_last_one(tmp_path):
    """File systems give a freed inode to the next file, and modification times have a resolution of milliseconds."""
    reader = ResidencyReader(tmp_path)
    for turn in range(50):
        tiers: ResidencyTable[str] = ResidencyTable(slots=1)
        tiers.record_tables(slots=(f"ad_{turn:02}",), memory=())
        for _ in range(2):  # the second file replaces the first, whose inode is then free
            write(tmp_path, tiers)
            os.utime(tmp_path / RESIDENCY_FILE, ns=(1, 1))
        assert reader.now().slots == (f"ad_{turn:02}",)
