"""An operator's command without its stores answers in one line that names the setting."""

import os
import re

import pytest
import redis
from sqlalchemy.exc import OperationalError

from billing import __main__ as billing
from control_plane import __main__ as control_plane
from core.errors import Unavailable
from core.unreachable_stores import named_when_unreachable
from tenora.stack.program import free_port
from tests.fixtures import fork_server


@pytest.mark.parametrize("command", [("billing", "verify"), ("control_plane", "base-models", "list")], ids=" ".join)
def test_a_command_without_postgres_names_the_setting_and_shows_no_traceback(command):
    dsn = f"postgresql+psycopg://127.0.0.1:{free_port()}/tenora"
    done = fork_server.run(*command, env=os.environ | {"TENORA_POSTGRES_DSN": dsn})
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Postgres cannot be reached: ")
    assert done.stderr.endswith("Set TENORA_POSTGRES_DSN to its address.\n")
    assert done.stderr.count("\n") == 1


def test_an_unreachable_redis_is_named():
    client = redis.Redis(port=free_port(), retry=None)
    with (
        pytest.raises(Unavailable, match=r"^Redis cannot be reached: .* Set TENORA_REDIS_URL"),
        named_when_unreachable(),
    ):
        client.ping()


def test_what_postgres_itself_answers_is_no_outage():
    class LockNotAvailable(Exception):
        sqlstate = "55P03"

    with pytest.raises(OperationalError), named_when_unreachable():
        raise OperationalError("SELECT 1", {}, LockNotAvailable())


@pytest.mark.parametrize("run", [billing.main, control_plane.main], ids=["billing", "control_plane"])
def test_each_command_describes_itself(run, capsys):
    def shown(*words: str) -> str:
        with pytest.raises(SystemExit):
            run([*words, "-h"])
        return capsys.readouterr().out

    names = re.findall(r"^    ([a-z-]+)(?: |$)", shown().partition("COMMAND\n")[2], flags=re.MULTILINE)
    assert len(names) >= 8
    for name in names:
        described = shown(name).split("\n\n")[1]
        assert described.endswith("."), (name, described)
