"""`tenora fleet` and `tenora top` against the real control plane, with replicas as their agents report them."""

import json

import pytest
import redis as redis_client
from click.testing import CliRunner

from core import redis_keys
from tenora.cli import main
from tests.fixtures.control_plane.registry_rows import beat


def document(ran) -> dict:
    """What a command printed with --json, after the log of the API in this process."""
    return json.loads(ran.stdout[ran.stdout.index("{\n") :])


@pytest.fixture
def redis(redis_server):
    with redis_client.Redis.from_url(redis_server) as client:
        client.flushall()
        yield client


@pytest.fixture
def run(api, tmp_path, monkeypatch):
    monkeypatch.setenv("TENORA_HOME", str(tmp_path / "nothing-runs-here"))

    def call(command: str, *arguments: object):
        access = ["--control-url", api.url, "--key", api.admin_secret]
        words = [*map(str, arguments)]
        ran = CliRunner().invoke(main, [command, *access, *words])
        assert ran.exit_code in (0, 1), ran.output
        return ran

    return call


def test_replicas_are_listed_drained_and_cordoned_by_their_names(run, redis):
    one, two = beat(redis, "tiny", node="gpu-7"), beat(redis, "tiny", node="gpu-8")
    beat(redis, "tiny", replica_id="rep_broken", state="failed", pages_total=0, reason="no token")
    listed = run("fleet", "list").output
    assert f"{one.id}  tiny" in listed
    assert "replica rep_broken is failed: no token" in listed
    assert f"{one.id} drains\n" in run("fleet", "drain", one.id).output
    assert redis.get(redis_keys.replica_drain(one.id)).decode() == one.boot_id
    refused = run("fleet", "cordon", "node", "gpu-8", "--reason", "memory errors")
    assert (refused.exit_code, "last that is ready for base model tiny" in refused.output) == (1, True)
    assert run("fleet", "undrain", one.id).exit_code == 0
    run("fleet", "cordon", "node", "gpu-8", "--reason", "memory errors")
    assert "cordoned node gpu-8: memory errors" in run("fleet", "list").output
    assert "node gpu-8 is no longer cordoned\n" in run("fleet", "uncordon", "node", "gpu-8").output
    assert document(run("fleet", "list", "--json"))["cordons"] == []
    assert two.id in run("fleet", "list").output


def test_a_name_that_is_no_part_of_an_address_is_refused_and_names_nothing_else(run, redis):
    one = beat(redis, "tiny", node="gpu-7")
    beat(redis, "tiny", node="gpu-8")
    for wrong in ("#2", "?2", "/2"):
        assert run("fleet", "drain", f"{one.id}{wrong}").exit_code == 1
        assert run("fleet", "cordon", "node", f"gpu-7{wrong}", "--reason", "a test").exit_code == 1
    assert redis.get(redis_keys.replica_drain(one.id)) is None
    assert document(run("fleet", "list", "--json"))["cordons"] == []


def test_one_look_shows_what_each_replica_does(run, redis):
    beat(redis, "tiny", replica_id="rep_busy", node="gpu-7", pages_free=40, running_requests=3, counted_tokens=500)
    (look,) = document(run("top", "--once", "--json"))["replicas"]
    assert (look["id"], look["tokens_per_s"], look["slots_used"]) == ("rep_busy", 0, 0)
    shown = run("top", "--once").output
    assert "rep_busy" in shown
    assert "gateways: on other machines" in shown
    assert "60/100" in shown
