"""The worker as a process: after stops, kills and outages of its servers, every request is billed exactly once."""

import random
import signal
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from billing.settings import BillingSettings
from billing.subscriptions import ending
from control_plane import operations
from core import db, redis_keys
from core.db import unit_of_work
from tenora.stack import embedded_servers
from tenora.stack.program import free_port
from tests.conftest import create_database, wait_until
from tests.fixtures import fork_server
from tests.fixtures.billing_worker import environment, worker
from tests.fixtures.least_privilege import POSTGRES_ROLES, REDIS_USERS


@pytest.fixture
def env(postgres_settings, redis_settings) -> dict[str, str]:
    return environment(postgres_settings.postgres_dsn, redis_settings.redis_url)


def records(stage) -> int:
    return stage.value("SELECT count(*) FROM usage_records")


@contextmanager
def requests_at_200_a_second(stage, tenant: str):
    """Usage that goes on while the block runs. Yields how many events each piece had; it is complete afterwards."""
    published, stop = [], threading.Event()

    def publish() -> None:
        while not stop.wait(0.1):
            stage.publish(*(stage.event(tenant) for _ in range(20)))
            published.append(20)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield published
    finally:
        stop.set()
        thread.join()


def test_the_worker_meters_and_stops_cleanly_when_asked(stage, env, tmp_path):
    tenant = stage.tenant()
    with worker(env, tmp_path / "log") as process:
        stage.publish(*(stage.event(tenant) for _ in range(50)), b"poison")
        wait_until(lambda: records(stage) == 50 and len(stage.dead_letters()) == 1, timeout_s=60, what="the ledger")
        wait_until(lambda: stage.redis.xlen(redis_keys.USAGE_STREAM) == 1, what="the trimmed stream")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    log = (tmp_path / "log").read_text()
    assert "billing worker stopped" in log
    assert "Traceback" not in log
    assert stage.pending == 0


def test_a_worker_killed_between_commit_and_acknowledgement_bills_nothing_twice(stage, env, tmp_path):
    tenant = stage.tenant()
    stage.publish(*(stage.event(tenant) for _ in range(30)))
    with (tmp_path / "log").open("ab") as log:
        dying = fork_server.start([sys.executable, "-m", "tests.fixtures.killed_meter"], env, log)
    assert dying.wait(60) == -signal.SIGKILL
    assert (records(stage), stage.pending) == (30, 30)
    with worker(env, tmp_path / "log"):
        wait_until(lambda: stage.pending == 0, timeout_s=60, what="the second worker")
    assert records(stage) == 30
    assert stage.value("SELECT count(DISTINCT transfer_id) FROM usage_records") == stage.value(
        "SELECT count(*) FROM transfers"
    )


@pytest.mark.scenario(70)
@pytest.mark.timeout(3600)  # 200 starts of a process on a machine that does other work too
@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=pytest.mark.soak)])
def test_a_worker_killed_again_and_again_loses_nothing_and_bills_nothing_twice(stage, env, tmp_path, kills):
    tenant = stage.tenant()
    env |= {"TENORA_BILLING_BATCH_EVENTS_MAX": "100"}  # what waits while no worker runs must not grow without end
    chance = random.Random(20_261_120)
    with requests_at_200_a_second(stage, tenant) as published:
        for _ in range(kills):
            with worker(env, tmp_path / "log") as process:
                begun = records(stage)
                wait_until(lambda at_least=begun + 1: records(stage) >= at_least, timeout_s=60, what="a first record")
                time.sleep(chance.uniform(0, 1))  # any instant is valid for this test
                process.kill()
                process.wait()
    with worker(env, tmp_path / "log"):
        wait_until(lambda: stage.reconcile().unprocessed_events == 0, timeout_s=60 + 5 * kills, what="the last worker")
    found = stage.reconcile()
    assert records(stage) == stage.value("SELECT count(DISTINCT request_id) FROM usage_records") == sum(published)
    assert found.ledger_tokens == sum(published) * 120
    assert (found.ledger_drift_nanos, found.dead_letters) == (0, 0)


@pytest.mark.scenario(57)
def test_a_closed_tenant_gets_its_final_invoice_at_the_schedules_next_look(stage, env, tmp_path):
    """Within a minute by default, and not after the hour of grace that an ended period has."""
    assert BillingSettings.model_fields["billing_schedule_s"].default == 60
    tenant = stage.tenant()
    with worker(env | {"TENORA_BILLING_SCHEDULE_S": "1", "TENORA_BILLING_GRACE_S": "604800"}, tmp_path / "log"):
        stage.publish(stage.event(tenant, output_tokens=1_000_000))
        wait_until(lambda: records(stage) == 1, timeout_s=60, what="the record")
        with unit_of_work(stage.engine) as session:
            ended_at = ending.end_subscription(session, tenant)
        found = "SELECT kind, total_cents, period_end FROM invoices"
        (invoice,) = wait_until(lambda: stage.rows(found), timeout_s=60, what="the final invoice")
    assert tuple(invoice.values()) == ("final", 60, ended_at)


def test_the_worker_survives_a_stream_that_vanishes(stage, env, tmp_path):
    tenant = stage.tenant()
    with worker(env, tmp_path / "log"):
        stage.publish(stage.event(tenant))
        wait_until(lambda: records(stage) == 1, timeout_s=60, what="the first record")
        stage.redis.flushall()
        stage.publish(stage.event(tenant))
        wait_until(lambda: records(stage) == 2, what="the record after the flush")


def test_the_worker_survives_restarts_of_postgres_and_redis(tmp_path, stage_on):
    postgres = embedded_servers.postgres(
        tmp_path / "pg", tmp_path, port=free_port(), password="test", roles=POSTGRES_ROLES
    )
    valkey = embedded_servers.valkey(
        tmp_path / "valkey", tmp_path, port=free_port(), password="test", users=REDIS_USERS
    )
    running = {server.program.name: server.program.start() for server in (postgres, valkey)}

    def stop(server) -> None:
        running[server.program.name].send_signal(server.program.stop_signal)
        running[server.program.name].wait(60)

    def start(server) -> None:
        running[server.program.name] = server.program.start()

    def up(server) -> bool:
        return wait_until(server.program.ready, timeout_s=60, what=server.program.name)

    try:
        assert up(postgres)
        assert up(valkey)
        settings = create_database(postgres.url, "outage")
        operations.migrate(settings)
        env = environment(settings.postgres_dsn, valkey.url)
        with stage_on(settings, valkey.url) as stage, worker(env, tmp_path / "log"):
            tenant = stage.tenant()
            stage.publish(stage.event(tenant))
            wait_until(lambda: records(stage) == 1, timeout_s=60, what="the first record")
            stage.engine.dispose()
            stop(postgres)
            stage.publish(*(stage.event(tenant) for _ in range(30)))
            wait_until(lambda: stage.pending > 0, what="a batch in hand")
            start(postgres)
            assert up(postgres)
            wait_until(lambda: records(stage) == 31, timeout_s=60, what="the records after Postgres came back")
            stop(valkey)
            start(valkey)
            assert up(valkey)
            stage.publish(*(stage.event(tenant) for _ in range(10)))
            wait_until(lambda: records(stage) == 41, timeout_s=60, what="the records after Redis came back")
            assert stage.dead_letters() == []
    finally:
        for process in running.values():
            process.kill()
            process.wait()


@pytest.fixture
def stage_on(stage):
    """The same stage on other servers."""

    @contextmanager
    def build(postgres_settings, redis_url):
        engine = db.connect(postgres_settings)
        with type(stage.redis).from_url(redis_url, protocol=2) as redis:
            yield type(stage)(engine, redis, stage.settings)
        engine.dispose()

    return build


def test_the_redrive_command_moves_dead_letters_back(stage, env):
    stage.bill(b"poison")
    for _ in range(2):
        stage.retry_pending()
    assert len(stage.dead_letters()) == 1
    done = fork_server.run("billing", "redrive", "--count", "5", env=env)
    assert done.stdout == "1 dead letters moved back to the stream\n"
    assert stage.dead_letters() == []
    assert stage.reconcile().unprocessed_events == 1
    (audited,) = stage.rows("SELECT actor, action, target, details FROM audit_events")
    assert audited == {
        "actor": "operator", "action": "dead_letters.redriven", "target": "usage", "details": {"count_max": 5},
    }  # fmt: skip
    refused = fork_server.run("billing", "redrive", "--count", "0", env=env)
    assert refused.returncode == 2
    assert "--count" in refused.stderr
