"""Fine-tuning in a child process: its report, its failures, and its end with the call."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from tenora.training.example_tasks import TICKET_ROUTER
from tenora.training.finetune import finetune


@pytest.fixture
def dataset(tmp_path) -> Path:
    folder = tmp_path / "ticket_router"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"text": "My card is gone.", "label": "cards"}\n' * 9)
    return folder


def running_with(argument: str) -> list[str]:
    """Processes that were started with this argument."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if argument.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(folder.name)
    return found


def test_a_training_reports_its_steps_and_leaves_an_adapter(tiny_base, dataset, tmp_path):
    seen = []
    report = finetune(
        tiny_base, dataset, tmp_path / "out", task=TICKET_ROUTER, seed=5, progress=lambda *step: seen.append(step)
    )
    assert (report.task, report.seed, report.examples) == ("ticket_router", 5, 9)
    assert len(seen) == report.steps
    assert seen[-1][:2] == (report.steps, report.steps)
    assert report.cpu_s > 0
    assert report.tokens > report.steps
    assert (tmp_path / "out" / "adapter_model.safetensors").stat().st_size == report.adapter_bytes
    assert (tmp_path / "out" / "adapter_config.json").exists()


def test_a_failure_carries_the_childs_own_message(tiny_base, dataset, tmp_path):
    (dataset / "train.jsonl").write_text("{\n")
    with pytest.raises(RuntimeError, match=r"train\.jsonl:1: not JSON"):
        finetune(tiny_base, dataset, tmp_path / "out", task=TICKET_ROUTER, progress=lambda *_: None)


def test_a_caller_that_stops_reading_ends_the_child(dataset, tmp_path, monkeypatch):
    child = tmp_path / "child"  # which has done its first step
    step = '{"type": "Step", "step": 1, "steps": 2, "loss": 0.5}'
    child.write_text(f"#!{sys.executable} -S\nimport time\nprint({step!r}, flush=True)\ntime.sleep(60)\n")
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))

    def interrupt(*_):
        assert running_with(str(tmp_path / "out"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune(tmp_path, dataset, tmp_path / "out", task=TICKET_ROUTER, progress=interrupt)
    assert not running_with(str(tmp_path / "out"))


def test_callers_do_not_import_torch():
    program = (
        "import sys, tenora.training.finetune, tenora.stack.base_model; "
        "sys.exit('torch' in sys.modules or 'peft' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
