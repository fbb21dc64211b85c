"""Who holds what, as other processes see it: alive, dead, and after the file was taken away."""

import subprocess
import sys

import pytest

from adapters.cache.digest_leases import HoldFile

A, B, C, D = (letter * 64 for letter in "abcd")


@pytest.fixture
def open_holds(tmp_path):
    opened = []

    def open_one() -> HoldFile:
        opened.append(HoldFile(tmp_path))
        return opened[-1]

    yield open_one
    for holds in opened:
        holds.close()


def test_what_another_living_process_holds_is_protected_and_what_a_dead_one_held_is_not(tmp_path, open_holds):
    code = (
        "import sys; from pathlib import Path; from adapters.cache.digest_leases import HoldFile; "
        "holds = HoldFile(Path(sys.argv[1])); holds.add('a' * 64); holds.add('b' * 64); holds.drop('a' * 64); "
        "holds.settle(); print('ready', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "ready\n"
        holds = open_holds()
        holds.add(C)
        assert holds.everyone() == {B, C}
    finally:
        other.kill()
        other.communicate()
    assert holds.everyone() == {C}
    assert len(list(tmp_path.iterdir())) == 1, "the dead process's file is gone"
    holds.close()
    assert not any(tmp_path.iterdir())


def test_dropped_pins_do_not_come_back(open_holds):
    mine, other = open_holds(), open_holds()
    for digest in (A, B, C):
        mine.add(digest)
    mine.drop(B)
    assert mine.holders(A) == mine.holders(C) == {""}
    assert mine.holders(B) == frozenset()
    assert other.everyone() == {A, B, C}, "kept until the file says otherwise"
    mine.settle()
    mine.add(D)
    assert other.everyone() == {A, C, D}


def test_a_digest_stays_until_its_last_holder_drops_it(open_holds):
    mine, other = open_holds(), open_holds()
    mine.add(A, "ad_1")
    assert mine.join(A, "ad_2")
    assert not mine.join(B, "ad_2"), "nobody holds it"
    for holder, left in (("ad_1", {"ad_2"}), ("ad_1", {"ad_2"}), ("ad_2", set())):
        mine.drop(A, holder)
        mine.settle()
        assert mine.holders(A) == left
        assert other.everyone() == ({A} if left else set())


def test_pins_whose_file_was_removed_are_written_again(tmp_path, open_holds):
    mine, other = open_holds(), open_holds()
    mine.add(A)
    for path in list(tmp_path.iterdir()):
        path.unlink()
    mine.settle()
    assert other.everyone() == {A}


def test_more_pins_than_there_was_space_reserved_for(open_holds):
    mine, other = open_holds(), open_holds()
    digests = {f"{number:064x}" for number in range(1500)}
    for digest in digests:
        mine.add(digest)
    assert other.everyone() == digests
