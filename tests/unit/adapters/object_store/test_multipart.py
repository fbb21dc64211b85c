"""How files are cut into parts."""

from hypothesis import given
from hypothesis import strategies as st

from adapters.object_store.multipart import MIB, part_bytes_for, parts_of
from adapters.settings import PART_BYTES_MAX, PART_BYTES_MIN, PARTS_MAX


@given(
    size_bytes=st.integers(1, 5_000_000_000),
    part_bytes=st.integers(PART_BYTES_MIN, 1 << 30),
    parts_max=st.integers(1, 2000),
)
def test_parts_cover_a_file_without_gap_or_overlap_and_within_the_limits_of_s3(size_bytes, part_bytes, parts_max):
    chosen = part_bytes_for(size_bytes, part_bytes=part_bytes, parts_max=parts_max)
    if chosen is None:
        assert size_bytes <= part_bytes
        return
    parts = parts_of(size_bytes, chosen)
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert 1 <= len(parts) <= parts_max <= PARTS_MAX
    end = 0
    for part in parts:
        assert part.offset_bytes == end
        assert 0 < part.size_bytes <= PART_BYTES_MAX
        end += part.size_bytes
    assert end == size_bytes
    assert {part.size_bytes for part in parts[:-1]} <= {chosen}
    assert chosen >= part_bytes


def test_small_files_are_sent_in_one_part():
    assert part_bytes_for(16 * MIB, part_bytes=16 * MIB, parts_max=1000) is None
    assert part_bytes_for(16 * MIB + 1, part_bytes=16 * MIB, parts_max=1000) == 16 * MIB


def test_parts_grow_if_there_would_be_too_many():
    assert part_bytes_for(100 * MIB, part_bytes=5 * MIB, parts_max=10) == 10 * MIB
    assert part_bytes_for(100 * MIB + 1, part_bytes=5 * MIB, parts_max=10) == 11 * MIB
