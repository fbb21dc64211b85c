"""The folders of upload validations: removed after use, kept while their process lives, removed after it was killed."""

import signal
import subprocess
import sys
import threading

import pytest

from adapters.sandbox.work_folder import remove_abandoned, work_folder

HOLD = """
import sys
from pathlib import Path
from adapters.sandbox.work_folder import work_folder
with work_folder(Path(sys.argv[1])) as folder:
    (folder / "upload").mkdir()
    (folder / "upload" / "adapter_model.safetensors").write_bytes(b"x" * 1000)
    print(folder, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has a folder open."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline().strip() == str(next(tmp_path.glob("tenora-upload-*")))
        yield process
        process.kill()


def test_a_folder_is_gone_after_the_block_however_it_ends(tmp_path):
    def fail():
        with work_folder(tmp_path) as folder:
            (folder / "file").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_a_killed_process_are_removed_and_those_of_a_living_one_are_not(tmp_path, holder):
    with work_folder(tmp_path) as mine:
        assert remove_abandoned(tmp_path) == 0
        assert len(list(tmp_path.iterdir())) == 2
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert remove_abandoned(tmp_path) == 1
        assert list(tmp_path.iterdir()) == [mine]


def test_nothing_else_is_touched(tmp_path):
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    place = tmp_path / "work"
    place.mkdir()
    (place / "tenora-upload-link").symlink_to(outside)
    (place / "tenora-upload-file").write_text("x")
    (place / "other").mkdir()
    assert remove_abandoned(place) == 0
    assert sorted(path.name for path in place.iterdir()) == ["other", "tenora-upload-file", "tenora-upload-link"]
    assert (outside / "deep").exists()


def test_a_sweep_never_removes_a_folder_that_is_being_created(tmp_path):
    stop = threading.Event()

    def sweep():
        while not stop.is_set():
            remove_abandoned(tmp_path)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for _ in range(300):
            with work_folder(tmp_path) as folder:
                (folder / "file").write_text("x")
                assert (folder / "file").read_text() == "x"
    finally:
        stop.set()
        sweeper.join()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_root_folder_is_empty(tmp_path):
    assert remove_abandoned(tmp_path / "nowhere") == 0
