"""A missing or invalid setting ends every program with one line that names it."""

import os
import runpy
import sys

import pytest

from core import telemetry
from core.errors import InvalidSettings
from core.settings import Fragment, check_settings
from tenora.docs.settings_page import PROCESSES

SECRETS = dict.fromkeys(("TENORA_KEY_PEPPER", "TENORA_ENGINE_KEY", "TENORA_SALT_SECRET"), "s" * 16)
PARTS = sorted({kind for process in PROCESSES for kind in process.settings}, key=lambda kind: kind.__name__)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("TENORA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(telemetry, "set_up", lambda *_: None)  # else later tests' logs go to this test's closed file


def run(monkeypatch, capsys, command: str) -> tuple[int, list[str]]:
    """The exit status of ``python -m <command>`` and the lines of its standard error."""
    module, *arguments = command.split()
    monkeypatch.delitem(sys.modules, f"{module}.__main__", raising=False)  # another test may have imported it
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    return ended.value.code, capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("data_plane gateway", ["KEY_PEPPER", "ENGINE_KEY", "SNAPSHOT_PUBLIC_KEYS", "SALT_SECRET"]),
        ("data_plane replica", ["ENGINE_KEY", "SNAPSHOT_PUBLIC_KEYS", "MODEL_PATH"]),
        ("control_plane web", ["KEY_PEPPER"]),
        ("control_plane worker", ["KEY_PEPPER"]),
        ("control_plane publish", ["KEY_PEPPER"]),
        ("control_plane bootstrap --admin-key-file x", ["KEY_PEPPER"]),
    ],
)
def test_each_missing_setting_is_a_line_with_its_name_and_meaning(monkeypatch, capsys, command, missing):
    status, lines = run(monkeypatch, capsys, command)
    assert status == 2
    assert sorted(line.partition(" is not set: ")[0] for line in lines) == sorted(f"TENORA_{name}" for name in missing)
    assert all(len(line.partition(": ")[2]) > 20 for line in lines)


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        ("data_plane gateway", {"GATEWAY_PORT": "http", "LOG_LEVEL": "loud"}),
        (
            "data_plane replica",
            {"ENGINE_PORT": "0", "ENGINE_RANK_MAX": "12", "S3_ENDPOINT": "store:9000", "CACHE_BYTES": "all"},
        ),
        ("data_plane replica", {"MODEL_PATH": "/nowhere", "ENGINE_KEY": "hidden", "REPLICA_ID": "one"}),
        (
            "control_plane web",
            {"KEY_PEPPER": "hidden", "POSTGRES_DSN": "postgres://u:hidden@h/d", "REDIS_URL": "h:6379"},
        ),
        ("control_plane migrate", {"POSTGRES_DSN": "postgresql://u:hidden@h/d"}),
        ("billing worker", {"BILLING_GRACE_S": "an hour", "STRIPE_API_KEY": "pk_test_hidden000"}),
        ("billing verify", {"POSTGRES_POOL_MAX": "0"}),
        ("tenora status", {"GATEWAY_PORT": "70000"}),
        ("tenora.stripe_simulator --port 1 --home /tmp", {"METRICS_PORT": ""}),
        ("alembic -c migrations/alembic.ini current", {"POSTGRES_DSN": "mysql://u:hidden@h/d"}),
    ],
)
def test_an_invalid_setting_is_a_line_with_its_name_and_no_secret(monkeypatch, capsys, command, variables):
    for name, value in (SECRETS | {f"TENORA_{name}": value for name, value in variables.items()}).items():
        monkeypatch.setenv(name, value)
    status, lines = run(monkeypatch, capsys, command)
    assert status == 2
    named = [line for line in lines if " is not set" not in line]
    assert sorted(line.split()[0].strip(":").removeprefix("Error: ") for line in named) == sorted(
        f"TENORA_{name}" for name in variables
    )
    assert "hidden" not in "".join(lines)


def unreadable(kind: type[Fragment]) -> list[str]:
    return [name for name, field in kind.model_fields.items() if field.annotation in (int, float, bool)]


@pytest.mark.parametrize("kind", [kind for kind in PARTS if unreadable(kind)], ids=lambda kind: kind.__name__)
def test_every_settings_class_names_each_variable_that_it_cannot_read(kind):
    with pytest.raises(InvalidSettings) as refused:
        kind(**dict.fromkeys(unreadable(kind), "?"))
    for name in unreadable(kind):
        (line,) = [line for line in refused.value.problems if line.startswith(f"TENORA_{name.upper()} is '?': it must")]
        assert line.endswith(kind.model_fields[name].description)


def test_the_problems_of_several_classes_are_listed_once():
    with pytest.raises(InvalidSettings) as refused:
        check_settings(*PARTS)
    assert sorted(problem.split()[0] for problem in refused.value.problems) == [
        "TENORA_ENGINE_KEY", "TENORA_KEY_PEPPER", "TENORA_MODEL_PATH", "TENORA_SALT_SECRET",
        "TENORA_SNAPSHOT_PUBLIC_KEYS",
    ]  # fmt: skip
