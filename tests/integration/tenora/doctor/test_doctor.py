"""The doctor on a running platform: a real agent, gateway, Redis and Postgres, and a witness with false reports."""

import json
import time

import msgspec
import pytest
from click.testing import CliRunner

from control_plane.projections import projections
from control_plane.publishing.outbox_relay import OutboxRelay
from core import redis_keys
from core.contracts.snapshots import GatewayStatus
from tenora.cli import main
from tenora.stack.program import free_port
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.engine.agent_harness import engine_name, running_agent
from tests.fixtures.snapshot_keys import SIGNER


@pytest.fixture
def room(redis_server, engine, tmp_path):
    """An agent and a gateway with the data of Postgres, published by the control plane's relay."""
    with running_agent(redis_server, tmp_path) as room, processes.gateway(tmp_path, redis_server):
        OutboxRelay(engine, room.client, projections(), SIGNER).rebuild("first")
        yield room


@pytest.fixture
def doctor(monkeypatch, redis_server, postgres_settings, tmp_path):
    """Examine the platform that the environment names; returns (exit status, findings)."""
    monkeypatch.setenv("TENORA_REDIS_URL", redis_server)
    monkeypatch.setenv("TENORA_POSTGRES_DSN", postgres_settings.postgres_dsn)
    monkeypatch.setenv("TENORA_ENGINE_KEY", processes.ENGINE_KEY)
    monkeypatch.setenv("TENORA_HOME", str(tmp_path / "no stack"))

    def run() -> tuple[int, list[dict]]:
        done = CliRunner().invoke(main, ["doctor", "--json", "--pause-s", "0.5"])
        return done.exit_code, json.loads(done.stdout).get("findings")

    return run


def test_a_healthy_platform_has_no_findings_and_a_lying_one_is_found_out(room, doctor):
    room.ask(engine_name())
    wait_until(lambda: any(room.residency().slots), what="the residency")
    assert doctor() == (0, [])
    hidden = engine_name().partition("@")[2]
    room.engine.tiers(dirty=[5], disk=[hidden])  # without its agent
    status, found = doctor()
    assert status == 1
    assert {"replica rep_one slot 5", "replica rep_one disk"} == {each["where"] for each in found}
    assert any(hidden in each["what"] for each in found)
    assert all(each["fix"] for each in found)
    shown = CliRunner().invoke(main, ["doctor", "--pause-s", "0"])
    assert shown.exit_code == 1
    assert "is free but not zeroed" in shown.stdout
    assert "restart the replica" in shown.stdout


def test_a_published_value_that_differs_from_postgres_is_found_and_the_named_fix_works(room, doctor, engine):
    room.publisher.tenant(tenant_id="tn_of_nobody")
    room.client.hset(redis_keys.SNAPSHOT_META, "generation", room.publisher.generation)
    late = GatewayStatus(id="gw_late", epoch="of yesterday", generation=1, heartbeat_ms=1)
    room.client.set(redis_keys.gateway(late.id), msgspec.json.encode(late))
    room.client.zadd(redis_keys.GATEWAYS, {late.id: time.time() * 1000})
    status, found = doctor()
    assert status == 1
    problems = {(each["where"], each["what"]) for each in found}
    assert ("snapshot tenants tn_of_nobody", "is published but not in Postgres") in problems
    assert ("gateway gw_late", "has applied another epoch of the snapshot") in problems
    room.client.delete(redis_keys.gateway(late.id))
    OutboxRelay(engine, room.client, projections(), SIGNER).rebuild("the fix")
    wait_until(lambda: doctor() == (0, []), what="the fix to work")


def test_what_it_cannot_reach_is_no_health(doctor, monkeypatch):
    monkeypatch.setenv("TENORA_REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    assert doctor() == (2, None)
