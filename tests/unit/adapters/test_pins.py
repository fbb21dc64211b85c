"""Who holds what, as other processes see it: alive, dead, and after the file was taken away."""

import subprocess
import sys

import pytest

from adapters.pins import PinFile

A, B, C, D = (letter * 64 for letter in "abcd")


@pytest.fixture
def open_pins(tmp_path):
    opened = []

    def open_one() -> PinFile:
        opened.append(PinFile(tmp_path))
        return opened[-1]

    yield open_one
    for pins in opened:
        pins.close()


def test_what_another_living_process_holds_is_protected_and_what_a_dead_one_held_is_not(tmp_path, open_pins):
    code = (
        "import sys; from pathlib import Path; from adapters.pins import PinFile; "
        "pins = PinFile(Path(sys.argv[1])); pins.add('a' * 64); pins.add('b' * 64); pins.drop('a' * 64); "
        "pins.settle(); print('ready', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "ready\n"
        pins = open_pins()
        pins.add(C)
        assert pins.everyone() == {B, C}
    finally:
        other.kill()
        other.communicate()
    assert pins.everyone() == {C}
    assert len(list(tmp_path.iterdir())) == 1, "the dead process's file is gone"
    pins.close()
    assert not any(tmp_path.iterdir())


def test_dropped_pins_do_not_come_back(open_pins):
    mine, other = open_pins(), open_pins()
    for digest in (A, B, C):
        mine.add(digest)
    mine.drop(B)
    assert mine.held == {A, C}
    assert other.everyone() == {A, B, C}, "kept until the file says otherwise"
    mine.settle()
    mine.add(D)
    assert mine.held == other.everyone() == {A, C, D}


def test_a_digest_stays_until_its_last_holder_drops_it(open_pins):
    mine, other = open_pins(), open_pins()
    mine.add(A, "ad_1")
    assert mine.join(A, "ad_2")
    assert not mine.join(B, "ad_2"), "nobody holds it"
    for holder, left in (("ad_1", {"ad_2"}), ("ad_1", {"ad_2"}), ("ad_2", set())):
        mine.drop(A, holder)
        mine.settle()
        assert mine.holders(A) == left
        assert other.everyone() == ({A} if left else set())


def test_pins_whose_file_was_removed_are_written_again(tmp_path, open_pins):
    mine, other = open_pins(), open_pins()
    mine.add(A)
    for path in list(tmp_path.iterdir()):
        path.unlink()
    mine.settle()
    assert other.everyone() == {A}


def test_more_pins_than_there_was_space_reserved_for(open_pins):
    mine, other = open_pins(), open_pins()
    digests = {f"{number:064x}" for number in range(1500)}
    for digest in digests:
        mine.add(digest)
    assert other.everyone() == digests
