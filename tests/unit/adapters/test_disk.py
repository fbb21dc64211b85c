"""What is evicted, what may never be, and who says so across processes."""

import multiprocessing
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.disk import AdapterFolder, CachedAdapter, choose_victims
from adapters.file_locks import LockTimeout, locked, try_lock
from adapters.pins import PinFile

adapters = st.lists(
    st.builds(
        CachedAdapter,
        digest=st.text("0123456789abcdef", min_size=4, max_size=4),
        size_bytes=st.integers(0, 100),
        used_at_ns=st.integers(0, 50),
    ),
    max_size=12,
    unique_by=lambda adapter: adapter.digest,
)


@given(adapters, st.integers(0, 200), st.integers(0, 500), st.data())
def test_the_least_recently_used_go_until_it_fits_and_never_a_protected_one(found, needed, budget, data):
    protected = frozenset(data.draw(st.sets(st.sampled_from(found).map(lambda a: a.digest)))) if found else frozenset()
    victims, excess = choose_victims(found, needed_bytes=needed, budget_bytes=budget, protected=protected)
    assert protected.isdisjoint(victims)
    kept = [adapter for adapter in found if adapter.digest not in victims]
    total = sum(adapter.size_bytes for adapter in kept) + needed
    assert excess == max(0, total - budget)
    if excess:
        assert {adapter.digest for adapter in kept} <= protected, "everything that could go went"
    by_digest = {adapter.digest: adapter for adapter in found}
    free = [adapter for adapter in kept if adapter.digest not in protected]
    assert all(by_digest[victim].used_at_ns <= adapter.used_at_ns for victim in victims for adapter in free)
    if victims:
        assert total + by_digest[victims[-1]].size_bytes > budget, "no more went than had to"


def test_what_another_living_process_holds_is_protected_and_what_a_dead_one_held_is_not(tmp_path):
    code = (
        "import sys; from pathlib import Path; from adapters.pins import PinFile; "
        "pins = PinFile(Path(sys.argv[1])); pins.add('a' * 64); pins.add('b' * 64); pins.remove('a' * 64); "
        "print('ready', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "ready\n"
        pins = PinFile(tmp_path)
        pins.add("c" * 64)
        assert pins.everyone() == {"b" * 64, "c" * 64}
    finally:
        other.kill()
        other.communicate()
    assert pins.everyone() == {"c" * 64}
    assert len(list(tmp_path.iterdir())) == 1, "the dead process's file is gone"
    pins.close()
    assert not any(tmp_path.iterdir())


def test_removed_pins_do_not_come_back(tmp_path):
    mine, other = PinFile(tmp_path), PinFile(tmp_path)
    for letter in "abc":
        mine.add(letter * 64)
    mine.remove("b" * 64)
    mine.add("d" * 64)
    assert mine.held == other.everyone() == {letter * 64 for letter in "acd"}
    mine.close()
    other.close()


def count_up(path, lock, times):
    for _ in range(times):
        with locked(lock, timeout_s=20):
            number = int(path.read_text())
            path.write_text(str(number + 1))


def test_a_lock_excludes_other_processes_and_leaves_no_file(tmp_path):
    counter, lock = tmp_path / "counter", tmp_path / "lock"
    counter.write_text("0")
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=count_up, args=(counter, lock, 25)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert counter.read_text() == "75"
    assert not lock.exists()


def test_waiting_for_a_lock_ends(tmp_path):
    descriptor = try_lock(tmp_path / "lock")
    started = time.monotonic()
    with pytest.raises(LockTimeout), locked(tmp_path / "lock", timeout_s=0.1):
        pass
    assert time.monotonic() - started < 2
    os.close(descriptor)


def test_only_digests_become_paths(tmp_path):
    folder = AdapterFolder(tmp_path)
    for name in ("../../etc", "", "x", "A" * 64):
        with pytest.raises(ValueError, match="no digest"):
            folder.path(name)


def test_what_a_crashed_process_left_in_the_trash_goes_at_the_next_start(tmp_path):
    folder = AdapterFolder(tmp_path)
    digest = "a" * 64
    folder.path(digest).mkdir()
    folder.discard(digest)
    assert [path.name[:64] for path in (tmp_path / ".trash").iterdir()] == [digest]
    AdapterFolder(tmp_path)
    assert not any((tmp_path / ".trash").iterdir())
