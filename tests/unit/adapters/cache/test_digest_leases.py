"""Leases as other processes see them: of a living process, of a dead one, and after the file was removed."""

import subprocess
import sys

import pytest

from adapters.cache.digest_leases import DigestLeases

A, B, C, D = (letter * 64 for letter in "abcd")


@pytest.fixture
def open_leases(tmp_path):
    opened = []

    def open_one() -> DigestLeases:
        opened.append(DigestLeases(tmp_path))
        return opened[-1]

    yield open_one
    for leases in opened:
        leases.close()


def test_leases_of_a_living_process_protect_and_those_of_a_dead_one_do_not(tmp_path, open_leases):
    code = (
        "import sys; from pathlib import Path; from adapters.cache.digest_leases import DigestLeases; "
        "leases = DigestLeases(Path(sys.argv[1])); leases.acquire('a' * 64); leases.acquire('b' * 64); "
        "leases.release('a' * 64); leases.flush(); print('ready', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "ready\n"
        leases = open_leases()
        leases.acquire(C)
        assert leases.all_leased() == {B, C}
    finally:
        other.kill()
        other.communicate()
    assert leases.all_leased() == {C}
    assert len(list(tmp_path.iterdir())) == 1, "the dead process's file is gone"
    leases.close()
    assert not any(tmp_path.iterdir())


def test_dropped_leases_do_not_return(open_leases):
    mine, other = open_leases(), open_leases()
    for digest in (A, B, C):
        mine.acquire(digest)
    mine.release(B)
    assert mine.holders(A) == mine.holders(C) == {""}
    assert mine.holders(B) == frozenset()
    assert other.all_leased() == {A, B, C}, "kept until the file is rewritten"
    mine.flush()
    mine.acquire(D)
    assert other.all_leased() == {A, C, D}


def test_a_digest_stays_until_its_last_holder_drops_it(open_leases):
    mine, other = open_leases(), open_leases()
    mine.acquire(A, "ad_1")
    assert mine.join(A, "ad_2")
    assert not mine.join(B, "ad_2"), "it has no lease"
    for holder, left in (("ad_1", {"ad_2"}), ("ad_1", {"ad_2"}), ("ad_2", set())):
        mine.release(A, holder)
        mine.flush()
        assert mine.holders(A) == left
        assert other.all_leased() == ({A} if left else set())


def test_pins_whose_file_was_removed_are_written_again(tmp_path, open_leases):
    mine, other = open_leases(), open_leases()
    mine.acquire(A)
    for path in list(tmp_path.iterdir()):
        path.unlink()
    mine.flush()
    assert other.all_leased() == {A}


def test_more_pins_than_there_was_space_reserved_for(open_leases):
    mine, other = open_leases(), open_leases()
    digests = {f"{number:064x}" for number in range(1500)}
    for digest in digests:
        mine.acquire(digest)
    assert other.all_leased() == digests
