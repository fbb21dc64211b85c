"""Every command prints for people or, with --json, one JSON document; an error too."""

import json

import click
import pytest
from click.testing import CliRunner

from tenora import cli
from tenora.client import TenoraError
from tenora.command_line import table

GROUPS = {"": cli.main} | {
    f"{name} ": each for name, each in cli.main.commands.items() if isinstance(each, click.Group)
}
COMMANDS = [
    f"{prefix}{name}"
    for prefix, group in GROUPS.items()
    for name, command in group.commands.items()
    if not command.hidden and not isinstance(command, click.Group)
]


@pytest.fixture
def tenora(monkeypatch, tmp_path):
    """Run the command on an empty home."""
    monkeypatch.setenv("TENORA_HOME", str(tmp_path))
    monkeypatch.setenv("TENORA_API_KEY", "tnr_live_x")
    for name in ("TENORA_CONTROL_URL", "TENORA_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    return lambda *arguments: CliRunner().invoke(cli.main, arguments)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_and_offers_json(name, tenora):
    shown = tenora(*name.split(), "-h")
    assert shown.exit_code == 0
    # The demo is a report for people, and the output of the placer, a process, is its log.
    assert "--json" in shown.stdout or name in ("demo", "ray-placer")


def test_the_version_is_printed(tenora):
    assert tenora("--version").stdout.split()[-1].count(".") >= 1


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["admin-key"], 1, "Nothing runs under"),
        (["logs"], 1, "never started"),
        (["doctor"], 2, "Nothing runs under"),
        (["adapters", "list"], 1, "--control-url"),
        (["upload", "/", "--adapter", "x", "--control-url", "http://127.0.0.1:1"], 1, "adapter_config.json is missing"),
        (["upload", "/nowhere", "--adapter", "x"], 2, "/nowhere"),
        (["adapters", "show"], 2, "Missing argument 'NAME'"),
        (["status", "--bogus"], 2, "No such option"),
        (["fleet", "scale", "2"], 1, "Nothing runs under"),
        (["fleet", "scale", "0"], 2, "not in the range 1<=x<=16"),
        (["fleet", "scale", "-1"], 2, "not in the range 1<=x<=16"),
        (["bogus"], 2, "No such command"),
    ],
)
def test_an_error_is_one_message_or_one_json_document(tenora, arguments, status, text):
    shown = tenora(*arguments)
    assert (shown.exit_code, text in shown.stderr, shown.stdout) == (status, True, "")
    in_json = tenora(*arguments, "--json")
    assert (in_json.exit_code, in_json.stderr) == (status, "")
    assert text in json.loads(in_json.stdout)["error"]["message"]


def test_text_of_others_cannot_steer_the_terminal(tenora, monkeypatch):
    def refuse(*_: object, **__: object):
        raise TenoraError("no adapter \x1b[2J\u202e", {"code": "adapter_not_found"})

    monkeypatch.setattr("tenora.client.Tenora.call", refuse)
    arguments = ("adapters", "show", "x", "--control-url", "http://c")
    assert tenora(*arguments).stderr == "Error: no adapter \\u001b[2J\\u202e\n"
    in_json = tenora(*arguments, "--json").stdout
    assert "\x1b" not in in_json
    assert json.loads(in_json)["error"] == {"message": "no adapter \x1b[2J\u202e", "code": "adapter_not_found"}
    assert table(["name"], [["a\x1bb"], [None]]) == "name\na\\u001bb\n-"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(tenora, shell):
    assert f"_TENORA_COMPLETE={shell}_complete" in tenora("completion", shell).stdout
    assert tenora("completion", "tcsh").exit_code == 2


def test_an_invalid_setting_is_an_error_in_json_as_well(tenora, monkeypatch):
    monkeypatch.setenv("TENORA_GATEWAY_PORT", "http")
    shown = tenora("status", "--json")
    assert shown.exit_code == 2
    assert json.loads(shown.stdout)["error"]["message"].startswith("TENORA_GATEWAY_PORT is 'http'")


def test_where_nothing_runs_the_answers_name_the_home(tenora, tmp_path):
    for command, status in (("status", 1), ("down", 0)):
        shown = tenora(command, "--json")
        assert (shown.exit_code, json.loads(shown.stdout)["home"]) == (status, str(tmp_path))
        assert str(tmp_path) in tenora(command).stderr.replace("\n", "")


def test_the_lines_of_all_logs_have_their_program_in_front(tenora, tmp_path):
    (tmp_path / "logs").mkdir()
    for program in ("web", "gateway"):
        (tmp_path / "logs" / f"{program}.log").write_text(f"first of {program}\nlast of {program}\n")
    assert tenora("logs", "-n", "1").stdout == "gateway | last of gateway\nweb     | last of web\n"
    assert tenora("logs", "web").stdout == "first of web\nlast of web\n"
    (line,) = tenora("logs", "web", "-n", "1", "--json").stdout.splitlines()
    assert json.loads(line) == {"program": "web", "line": "last of web"}
    assert "choose one of: gateway, web" in tenora("logs", "nothing").stderr


def test_following_a_log_ends_quietly_on_ctrl_c(tenora, tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "web.log").write_text("a line\n")

    def press(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("tenora.stack.log_files.time.sleep", press)
    shown = tenora("logs", "-f")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "web | a line\n", "")
