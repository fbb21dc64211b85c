"""Which files of the request log count, and which are merged: every row is in exactly one that counts."""

from hypothesis import given
from hypothesis import strategies as st

from control_plane.request_log.files import EntryId, RequestLogFile, counting, merged, runs_to_merge

DAY = "2026-11-27"
EVERYTHING = EntryId(10**12, 0)


def file(first: int, last: int | None = None, *, level: int = 0, size: int = 1, day: str = DAY) -> RequestLogFile:
    return RequestLogFile(day, EntryId(first, 0), EntryId(first if last is None else last, 0), level, size)


def test_a_merged_file_replaces_those_that_begin_in_its_range_and_no_others():
    inside, last, after = file(1, 4), file(5, 9), file(6, 8)
    whole = merged([inside, last])
    assert (whole.first, whole.last) == (inside.first, last.first)
    assert counting([after, last, whole, inside]) == [whole, after]  # the batch of another writer, which began later


def test_a_merged_file_of_another_day_replaces_nothing():
    assert counting([file(1, 9, level=1), file(2, day="2026-11-28")]) == [
        file(1, 9, level=1),
        file(2, day="2026-11-28"),
    ]


def test_few_small_files_are_left_alone_and_enough_bytes_are_merged():
    few = [file(at) for at in range(3)]
    assert runs_to_merge(few, before=EVERYTHING, files_min=4, bytes_max=100) == []
    assert runs_to_merge([*few, file(9, size=60)], before=EVERYTHING, files_min=9, bytes_max=100) == [
        [*few, file(9, size=60)]
    ]


def test_a_file_is_merged_only_when_all_before_it_is_written():
    several = [file(at) for at in range(6)]
    assert runs_to_merge(several, before=EntryId(4, 0), files_min=2, bytes_max=100) == [several[:4]]


@given(
    sizes=st.lists(st.integers(1, 40), max_size=60),
    written=st.lists(st.integers(0, 60), max_size=8),
    killed=st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_every_batch_is_in_exactly_one_file_that_counts_through_any_merges_and_kills(sizes, written, killed):
    """A round may die between writing a merged file and deleting what it replaces, which is then deleted later."""
    holds = {file(at, size=size): {at} for at, size in enumerate(sizes)}
    for before, dies in zip(sorted(written), killed, strict=False):
        for gone in set(holds).difference(counting(holds)) if not dies else ():
            del holds[gone]
        for run in runs_to_merge(holds, before=EntryId(before, 0), files_min=3, bytes_max=100):
            batches = [batch for each in run for batch in holds[each]]
            whole = merged(run)._replace(size_bytes=sum(each.size_bytes for each in run))
            assert whole not in holds
            holds[whole] = set(batches)
        shown = [batch for each in counting(holds) for batch in holds[each]]
        assert sorted(shown) == list(range(len(sizes)))
