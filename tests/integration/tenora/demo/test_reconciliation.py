"""The reconciliation at the end of the demo, on a real Postgres and Valkey."""

from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from tenora.demo import reconciliation
from tenora.demo.reconciliation import reconcile
from tests.fixtures import fork_server


@pytest.fixture
def status(engine, postgres_settings, redis_settings, monkeypatch):
    """The stores of a platform. The command starts by a fork here."""
    forked = SimpleNamespace(run=lambda argv, *, env, **_: fork_server.run(*argv[2:], env=env))
    monkeypatch.setattr(reconciliation, "subprocess", forked)
    return {"postgres_dsn": postgres_settings.postgres_dsn, "redis_url": redis_settings.redis_url}


def test_books_that_agree_have_no_difference(status):
    assert reconcile(status).differences == 0


def test_a_difference_is_counted_and_named(status, engine):
    with engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.execute(sa.text("INSERT INTO transfers (id, kind, created_at) VALUES ('tr_1', 'usage', now())"))
    found = reconcile(status, wait_s=0)
    assert (found.differences, "transfer_balance tr_1: 0 legs" in found.output) == (1, True)


def test_a_command_that_fails_is_no_agreement(status):
    nowhere = status | {"postgres_dsn": "postgresql+psycopg://none@127.0.0.1:1/nothing"}
    with pytest.raises(RuntimeError, match="ended with 1"):
        reconcile(nowhere, wait_s=0)
