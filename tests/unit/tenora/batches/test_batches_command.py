"""What `tenora batches` prints, for people and as JSON."""

import json

import pytest
from click.testing import CliRunner

from tenora.batches import command
from tenora.cli import main

RUNNING = {
    "id": "batch_1",
    "status": "in_progress",
    "request_counts": {"total": 10, "completed": 4, "failed": 1},
    "cost_nanos": 12_300_000,
    "paused": False,
    "service_class": "interactive",
    "estimated_completion": 1_800_000_000,
    "expires_at": 1_800_003_600,
    "output_file_id": None,
    "error_file_id": None,
    "errors": None,
}
DONE = RUNNING | {
    "status": "completed", "request_counts": {"total": 10, "completed": 9, "failed": 1}, "estimated_completion": None,
    "service_class": "batch", "output_file_id": "file_1", "error_file_id": "file_2",
}  # fmt: skip
FAILED = DONE | {"status": "failed", "errors": {"data": [{"message": "Line 2: custom_id: line 1 has the same."}]}}


class Answers:
    """A control plane that gives each of these answers once, and the last one again."""

    def __init__(self, *found: object) -> None:
        self.found = list(found)
        self.calls: list[tuple[object, ...]] = []

    def __call__(self, *_: object, **__: object) -> "Answers":
        return self

    def __enter__(self) -> "Answers":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, method: str, path: str, body: object = None, **_: object) -> "Answers":
        self.calls.append((method, path, body))
        return self

    def json(self) -> object:
        return self.found.pop(0) if len(self.found) > 1 else self.found[0]


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(command, "_POLL_S", 0.0)

    def ran(answers: Answers, *arguments: str):
        monkeypatch.setattr("tenora.control_access.Tenora", answers)
        keys = {"TENORA_API_KEY": "tnr_live_x", "TENORA_ADMIN_KEY": "tnr_admin_x"}
        return CliRunner().invoke(main, ["batches", "--control-url", "http://c", *arguments], env=keys)

    return ran


def test_batches_are_listed_in_a_line_each(run):
    result = run(Answers({"data": [RUNNING, DONE]}), "list")
    first, second = result.output.splitlines()
    assert first.startswith("batch_1  in_progress  4 of 10 lines, 1 failed, $0.0123, deadline in danger: runs as")
    assert first.endswith("interactive, ends about 2027-01-15 08:00 UTC")
    assert second == "batch_1  completed  9 of 10 lines, 1 failed, $0.0123"
    assert run(Answers({"data": []}), "list").output == "no batches\n"


def test_a_batch_is_shown_with_its_files_and_what_is_wrong(run):
    shown = run(Answers(FAILED), "show", "batch/1")
    assert shown.exit_code == 0
    assert shown.output.splitlines()[1:] == [
        "expires 2027-01-15 09:00 UTC",
        "output_file_id: file_1",
        "error_file_id: file_2",
        "Line 2: custom_id: line 1 has the same.",
    ]
    assert json.loads(run(Answers(DONE), "show", "batch_1", "--json").output) == DONE


@pytest.mark.parametrize(("end", "status"), [(DONE, 0), (FAILED, 1)])
def test_watch_follows_a_batch_until_it_has_ended(run, end, status):
    answers = Answers(RUNNING, RUNNING, end)
    result = run(answers, "watch", "batch_1")
    assert result.exit_code == status
    assert "output_file_id: file_1" in result.output
    assert [call[:2] for call in answers.calls] == [("GET", "/v1/batches/batch_1")] * 3
    as_json = run(Answers(RUNNING, end), "watch", "batch_1", "--json")
    assert (json.loads(as_json.output), as_json.exit_code) == (end, status)


def test_a_batch_is_cancelled_and_all_are_paused_and_resumed(run):
    answers = Answers(RUNNING | {"status": "cancelling"})
    assert run(answers, "cancel", "batch_1").output.startswith("batch_1  cancelling  4 of 10 lines")
    assert answers.calls == [("POST", "/v1/batches/batch_1/cancel", None)]
    answers = Answers({"paused": True})
    assert run(answers, "pause", "--reason", "an incident").output == "all batches pause\n"
    assert run(answers, "resume").output == "batches go on\n"
    path = "/api/v1/admin/batches/pause"
    assert answers.calls == [("PUT", path, {"reason": "an incident"}), ("DELETE", path, None)]


def test_without_a_key_a_command_says_which_one_is_missing():
    result = CliRunner().invoke(main, ["batches", "list"], env={"TENORA_API_KEY": "", "XDG_CONFIG_HOME": "/nowhere"})
    assert result.exit_code == 1
    assert "set TENORA_API_KEY" in result.output
