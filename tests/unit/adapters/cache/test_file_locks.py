"""Locks between processes: they exclude, they end, and they survive the removal of their folder."""

import multiprocessing
import os
import shutil
import threading
import time

import pytest

from adapters.cache.file_locks import LockTimeout, locked, try_lock


def count_up(path, lock, times):
    for _ in range(times):
        with locked(lock, timeout_s=20):
            number = int(path.read_text())
            path.write_text(str(number + 1))


def test_a_lock_excludes_other_processes_and_leaves_no_file(tmp_path):
    counter, lock = tmp_path / "counter", tmp_path / "lock"
    counter.write_text("0")
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=count_up, args=(counter, lock, 25)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert counter.read_text() == "50"
    assert not lock.exists()


def test_waiting_for_a_lock_ends(tmp_path, promised_s):
    descriptor = try_lock(tmp_path / "lock")
    started = time.monotonic()
    with pytest.raises(LockTimeout), locked(tmp_path / "lock", timeout_s=0.1):
        pass
    assert time.monotonic() - started < promised_s(2)
    os.close(descriptor)


def test_waiting_for_a_lock_ends_when_stopped(tmp_path):
    descriptor, stop = try_lock(tmp_path / "lock"), threading.Event()
    threading.Timer(0.1, stop.set).start()
    with pytest.raises(LockTimeout), locked(tmp_path / "lock", timeout_s=60, stop=stop):
        pass
    os.close(descriptor)


def test_a_lock_in_a_removed_folder_does_not_remove_the_new_lock(tmp_path):
    lock = tmp_path / "locks" / "one"
    with locked(lock, timeout_s=1):
        shutil.rmtree(lock.parent)
        theirs = try_lock(lock)
        assert theirs is not None
    assert lock.exists(), "the other lock is still held"
    assert try_lock(lock) is None
    os.close(theirs)
