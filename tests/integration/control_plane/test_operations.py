"""The operator's commands migrate, bootstrap, publish and web as real processes, and the readiness route."""

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
from datetime import UTC, datetime

import httpx
import pytest
import redis as redis_client
from sqlalchemy.exc import IntegrityError

from control_plane import database_roles, health
from control_plane.api_keys.service import find_principal
from control_plane.audit.models import AuditEvent
from control_plane.auth.authenticate import Authenticator, Pepper
from control_plane.operations import bootstrap, migrate
from control_plane.registry.models import Revision
from core import db, redis_keys
from core.api_keys import is_well_formed
from core.errors import Unprocessable
from core.settings import PostgresSettings, RedisSettings
from tenora.stack.program import free_port
from tests.conftest import create_database, wait_until
from tests.fixtures import fork_server
from tests.fixtures.control_plane.api import PEPPER, control_settings, running_api
from tests.fixtures.control_plane.worker import environment
from tests.fixtures.databases import unreachable


def run(settings, *arguments: str, user: str = database_roles.WEB, **extra: str) -> subprocess.CompletedProcess:
    return fork_server.run("control_plane", *arguments, env=environment(settings, user, **extra))


def test_bootstrap_makes_one_admin_key_however_often_it_runs(settings, engine, tmp_path):
    file = tmp_path / "home" / "admin.key"
    first, again = (run(settings, "bootstrap", "--admin-key-file", str(file)) for _ in range(2))
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert ("minted" in first.stdout, "kept" in again.stdout) == (True, True)
    secret = file.read_text().strip()
    assert is_well_formed(secret)
    assert secret not in first.stdout + first.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    authenticator = Authenticator(engine=engine, pepper=Pepper(value=PEPPER.encode()), find_principal=find_principal)
    principal = authenticator.authenticate(f"Bearer {secret}")
    assert principal.tenant_id is None
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM api_keys").scalar() == 1


def test_bootstrap_stores_a_key_whose_row_is_missing_and_touches_no_other_file(settings, engine, tmp_path):
    file = tmp_path / "admin.key"
    bootstrap(settings.postgres, settings.keys, file)
    secret = file.read_text()
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM api_keys")
    assert "and stored" in bootstrap(settings.postgres, settings.keys, file)
    assert file.read_text() == secret
    file.write_text("something else")
    with pytest.raises(Unprocessable, match="Move it away"):
        bootstrap(settings.postgres, settings.keys, file)
    assert file.read_text() == "something else"
    assert [path.name for path in tmp_path.iterdir()] == ["admin.key"]


def test_admin_keys_are_created_listed_and_revoked(settings, api, tmp_path):
    file = tmp_path / "second.key"
    created = run(settings, "admin-keys", "create", "--name", "on call", "--key-file", str(file))
    assert created.returncode == 0, created.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = file.read_text().strip()
    assert secret not in created.stdout + created.stderr
    assert api.client(secret).get("/api/v1/admin/plans").status_code == 200

    first, second = run(settings, "admin-keys", "list").stdout.splitlines()
    assert ("bootstrap" in first, "on call" in second) == (True, True)
    assert secret not in second
    revoked = run(settings, "admin-keys", "revoke", first.split()[0])
    assert revoked.returncode == 0, revoked.stderr
    assert api.admin.get("/api/v1/admin/plans").status_code == 401
    assert "revoked" in run(settings, "admin-keys", "list").stdout.splitlines()[0]

    last = run(settings, "admin-keys", "revoke", second.split()[0])
    assert (last.returncode, "last admin key" in last.stderr) == (1, True)
    assert api.client(secret).get("/api/v1/admin/plans").status_code == 200


def test_an_admin_key_replaces_no_file_and_an_unknown_one_cannot_be_revoked(settings, api, tmp_path):
    file = tmp_path / "taken"
    file.write_text("something else")
    taken = run(settings, "admin-keys", "create", "--name", "x", "--key-file", str(file))
    assert (taken.returncode, "Name a new file" in taken.stderr) == (1, True)
    assert file.read_text() == "something else"
    unknown = run(settings, "admin-keys", "revoke", api.tenant().key_id)
    assert (unknown.returncode, "No admin key has the id" in unknown.stderr) == (1, True)


def test_migrate_builds_an_empty_database_and_names_the_fix_when_it_cannot(
    postgres_server, redis_settings, s3_settings, tmp_path
):
    empty = create_database(postgres_server, f"empty_{os.urandom(4).hex()}")
    settings = control_settings(empty, redis_settings, s3_settings)
    for _ in range(2):
        done = run(settings, "migrate", TENORA_POSTGRES_DSN=empty.postgres_dsn)
        assert (done.returncode, "not granted" in done.stderr) == (0, False), done.stderr
    engine = db.connect(empty)
    with db.unit_of_work(engine) as session:
        assert session.get(Revision, "rev_none") is None
    engine.dispose()
    with pytest.raises(Unprocessable, match="checkout of the repository"):
        migrate(empty, tmp_path)


def test_publish_puts_the_whole_snapshot_in_redis(settings, api, redis):
    tenant = api.tenant()
    done = run(settings, "publish", user=database_roles.WORKER)
    assert done.returncode == 0, done.stderr
    assert redis.hkeys(redis_keys.snapshot("tenants")) == [tenant.id.encode()]
    assert redis.hget(redis_keys.SNAPSHOT_META, "epoch").decode() in done.stdout
    rows = api.admin.get("/api/v1/admin/audit-events", params={"action": "snapshot"}).json()["data"]
    assert [(row["actor"], row["action"]) for row in rows] == [("operator", "snapshot.rebuilt")]


def test_a_web_process_serves_and_stops_when_asked(settings):
    """Started as an operator does: it imports for itself."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "control_plane", "web"],
        env=environment(settings, TENORA_CONTROL_PORT=str(port)),
        stdout=subprocess.PIPE,
    )

    def answer():
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz")
        except httpx.TransportError:
            return None

    try:
        ready = wait_until(answer, what="web", timeout_s=60)
    finally:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
    assert (ready.status_code, ready.json()) == (200, {"postgres": "ok", "redis": "ok", "s3": "ok"})
    assert b'"path":"/readyz"' in out.replace(b" ", b""), "each request is a line of JSON"
    assert ready.headers["x-request-id"].encode() in out


def test_a_process_without_its_dependencies_runs_and_reports_not_ready(settings):
    nowhere = control_settings(
        PostgresSettings(postgres_dsn=settings.postgres.postgres_dsn),
        RedisSettings(redis_url="redis://127.0.0.1:9/0"),
        settings.s3,
        web=settings.web,
    )
    with running_api(nowhere) as api:
        assert api.anyone.get("/livez").json() == {"status": "ok"}
        answer = api.anyone.get("/readyz")
        assert (answer.status_code, answer.json()["redis"], answer.json()["postgres"]) == (503, "unavailable", "ok")
        refused = api.tenant().http.get("/api/v1/quota")
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        assert "127.0.0.1" not in refused.text


def test_without_postgres_a_key_lookup_fails_without_leaking_details(settings, postgres_settings):
    with running_api(settings) as api:
        tenant = api.tenant()
        with unreachable(postgres_settings):
            refused = tenant.http.get("/api/v1/me")
            assert (refused.status_code, refused.json()["code"]) == (503, "unavailable"), refused.text
            assert postgres_settings.postgres_dsn.rpartition("/")[2] not in refused.text
        assert tenant.http.get("/api/v1/me").status_code == 200


def test_readiness_asks_the_stores_once_a_second_however_often_it_is_asked(settings, monkeypatch):
    asked = []
    monkeypatch.setattr(health, "_state", lambda name, _: asked.append(name) or "ok")
    now = 100.0
    monkeypatch.setattr(health.time, "monotonic", lambda: now)
    check = health.ReadinessCheck(None, redis_client.Redis(), None)
    for _ in range(50):
        assert check.result().s3 == "ok"
    assert sorted(asked) == ["postgres", "redis", "s3"]
    now += 1
    check.result()
    assert len(asked) == 6


def test_old_audit_rows_are_moved_to_a_file_by_the_owner_and_the_rest_stays(
    settings, postgres_settings, engine, tmp_path
):
    with db.unit_of_work(engine) as session:
        for day in (1, 2, 3):
            row = AuditEvent(actor="key_1", action="test.done", target=f"day {day}", details={"n": day})
            row.created_at = datetime(2026, 1, day, tzinfo=UTC)
            session.add(row)
    file = tmp_path / "audit.jsonl"
    command = ("archive-audit", "--before", "2026-01-03", "--to", str(file))
    assert "permission denied" in run(settings, *command).stderr
    file.unlink(missing_ok=True)
    owner = {"TENORA_POSTGRES_DSN": postgres_settings.postgres_dsn}
    moved = run(settings, *command, **owner)
    assert (moved.returncode, "moved 2 rows" in moved.stdout) == (0, True), moved.stderr
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["target"], row["details"]) for row in rows] == [("day 1", {"n": 1}), ("day 2", {"n": 2})]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with engine.connect() as connection:
        left = connection.exec_driver_sql("SELECT action, target FROM audit_events ORDER BY created_at").fetchall()
        details = connection.exec_driver_sql(
            "SELECT details FROM audit_events WHERE action = 'audit.archived'"
        ).scalar()
    assert [tuple(row) for row in left] == [("test.done", "day 3"), ("audit.archived", "audit.jsonl")]
    assert details["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    again = run(settings, *command, **owner)
    assert (again.returncode, "Name a new file" in again.stderr) == (1, True)


def test_no_audit_row_is_changed_or_deleted_otherwise(engine):
    with db.unit_of_work(engine) as session:
        session.add(AuditEvent(actor="key_1", action="test.done", target="x"))
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "DO $$ BEGIN CREATE ROLE stranger; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        )
        connection.exec_driver_sql("GRANT ALL ON audit_events TO stranger")
    for statement in (
        "DELETE FROM audit_events",
        "UPDATE audit_events SET actor = 'x'",
        "TRUNCATE audit_events",
        "SET LOCAL tenora.archiving_audit = 'on'; UPDATE audit_events SET actor = 'x'",
        "SET LOCAL tenora.archiving_audit = 'on'; TRUNCATE audit_events",
        "SET LOCAL ROLE stranger; SET LOCAL tenora.archiving_audit = 'on'; DELETE FROM audit_events",
    ):
        with pytest.raises(IntegrityError, match="only ever added"), engine.begin() as connection:
            connection.exec_driver_sql(statement)
