"""`tenora status` over a real Valkey, in which agents have published."""

import json
from dataclasses import replace

import redis
from click.testing import CliRunner

from tenora.cli import main
from tenora.settings import StackSettings
from tenora.stack import daemon, status
from tests.fixtures.control_plane.registry_rows import beat


def test_a_state_that_only_newer_agents_know_is_shown(define, redis_server, monkeypatch):
    stack = define()
    stack.addresses = replace(stack.addresses, redis_url=redis_server)
    monkeypatch.setattr(status, "running_stack", lambda _settings: stack)
    monkeypatch.setattr(status, "is_up", lambda _settings: True)
    monkeypatch.setenv("TENORA_HOME", str(stack.home))
    program = {"state": "ready", "pid": 1, "restarts": 0, "log": "replica.log"}
    file = daemon.run_folder(StackSettings(home=stack.home)) / "state.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"programs": {"replica": program}}))
    with redis.Redis.from_url(redis_server) as client:
        client.flushall()
        beat(client, "tiny", replica_id="rep_1", state="hibernating", reason="it is night")
    shown = CliRunner().invoke(main, ["status"])
    assert (shown.exit_code, "replica rep_1 is hibernating: it is night" in shown.output) == (1, True), shown.output
    (replica,) = json.loads(CliRunner().invoke(main, ["status", "--json"]).output)["replicas"]
    assert replica["state"] == "hibernating"
