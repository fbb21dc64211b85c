"""Billing's migration goes up and down and leaves nothing behind."""

import secrets
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from alembic import command

from billing.invoices import closing, queries
from billing.invoices.verification import verify
from billing.metering import Meter
from billing.reconciliation import audit
from billing.reconciliation.engine_counts import EngineCountKeeper
from billing.settings import BillingSettings
from billing.stream import UsageStream
from billing.worker import connect_redis
from core import db, redis_keys
from core.db import unit_of_work
from tests.conftest import alembic_config, create_database

BEFORE_DOCUMENTS = "2026_11_24_1110"
FUNCTIONS = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'billing_%'"


def test_the_migration_creates_and_drops_the_tables_and_their_guards(postgres_server):
    settings = create_database(postgres_server, f"migration_{secrets.token_hex(6)}")
    config = alembic_config(settings)
    engine = db.connect(settings)

    def found() -> tuple[set[str], int]:
        with engine.connect() as connection:
            return set(sa.inspect(connection).get_table_names()), connection.execute(sa.text(FUNCTIONS)).scalar_one()

    command.upgrade(config, "2026_11_20_0600")
    before = found()
    command.upgrade(config, "2026_11_20_0610")
    tables, functions = found()
    assert {"usage_records", "entries", "transfers", "invoices", "invoice_lines", "price_versions"} < tables
    assert functions == 8
    command.downgrade(config, "2026_11_20_0600")
    assert found() == before
    command.upgrade(config, "2026_11_20_0610")
    assert found() == (tables, functions)
    engine.dispose()


KINDS = "SELECT kind, quantity FROM invoice_lines WHERE invoice_id = 'inv_1' ORDER BY position"
MONTHS = "SELECT month, input_tokens, amount_nanos FROM usage_months ORDER BY 1"
BEFORE = """
INSERT INTO price_versions VALUES ('pv_1', 'pl_1', 150, 75, 600, 1000, to_timestamp(0), now());
INSERT INTO plan_assignments VALUES ('tn_1', to_timestamp(0), 'pl_1', now());
INSERT INTO accounts VALUES ('acc_u', 'usage_unbilled', 'tn_1'), ('acc_r', 'receivable', 'tn_1'),
    ('acc_v', 'revenue', NULL), ('acc_o', 'rounding', NULL);
INSERT INTO transfers (id, kind, request_id, created_at)
    SELECT 'tr_' || n, 'usage', 'req_' || n, now() FROM generate_series(1, 4) n;
INSERT INTO entries SELECT 'tr_' || n, account, sign * 28801 FROM generate_series(1, 4) n,
    (VALUES ('acc_u', 1), ('acc_v', -1)) legs (account, sign);
INSERT INTO usage_records (request_id, tenant_id, key_id, base_model, replica_id, outcome, started_at, settled_at,
    input_tokens, cached_tokens, output_tokens, kv_page_ms, price_version_id, input_nanos, cached_input_nanos,
    output_nanos, kv_nanos, amount_nanos, transfer_id, invoice_id, duration_ms, adapter_load_ms, stall_ms, estimated)
SELECT 'req_' || n, 'tn_1', 'key_1', 'base', 'rep_1', 'done', settled, settled, 100, 0, 22, 601, 'pv_1', 15000, 0,
    13200, 601, 28801, 'tr_' || n, invoice, 0, 0, 0, false
FROM (VALUES (1, timestamptz '2026-09-10 10:20Z', 'inv_1'), (2, timestamptz '2026-09-11 00:00Z', 'inv_1'),
    (3, timestamptz '2026-09-12 00:00Z', NULL), (4, timestamptz '2026-10-05 00:00Z', NULL)) r (n, settled, invoice);
INSERT INTO invoices
VALUES ('inv_1', 1, 'tn_1', '2026-09-10 10:20Z', '2026-10-01Z', 'finalised', 'usd', 0, 57602, now());
INSERT INTO invoice_lines (id, invoice_id, position, kind, base_model, price_version_id, quantity, unit_price_nanos,
    amount_nanos, amount_cents, request_count)
VALUES ('il_1', 'inv_1', 1, 'input_tokens', 'base', 'pv_1', 200, 150, 30000, 0, 2),
    ('il_2', 'inv_1', 2, 'output_tokens', 'base', 'pv_1', 44, 600, 26400, 0, 2),
    ('il_3', 'inv_1', 3, 'kv_page_seconds', 'base', 'pv_1', 1202, 1000, 1202, 0, 2);
INSERT INTO transfers (id, kind, invoice_id, created_at) VALUES ('tr_i', 'invoice', 'inv_1', now());
INSERT INTO entries VALUES ('tr_i', 'acc_u', -57602), ('tr_i', 'acc_r', 0), ('tr_i', 'acc_o', 57602);
"""
OLD_EVENT = (
    b'{"request_id":"req_01kb0000000000000000000000","tenant_id":"tn_1","key_id":"key_1","base_model":"base",'
    b'"adapter_id":null,"revision_id":null,"replica_id":"rep_1","outcome":"done","started_at_ms":1793500000000,'
    b'"settled_at_ms":1793500001000,"input_tokens":100,"cached_tokens":32,"output_tokens":20,"kv_page_ms":1601,'
    b'"first_token_ms":null,"duration_ms":1000,"adapter_tier":null,"adapter_load_ms":0,"stall_ms":0,"estimated":false,'
    b'"price_version_id":"pv_1"}'
)


@pytest.fixture
def migrated_data(postgres_server):
    """A database with usage and an invoice as the first release wrote them, brought up to date."""
    settings = create_database(postgres_server, f"migration_{secrets.token_hex(6)}")
    config = alembic_config(settings)
    command.upgrade(config, "2026_11_20_1000")
    engine = db.connect(settings)
    with engine.begin() as connection:
        connection.exec_driver_sql(BEFORE)
    command.upgrade(config, "head")
    yield engine
    engine.dispose()


def test_final_invoices_and_unbilled_records_survive_the_move_to_sums(migrated_data):
    until = datetime(2026, 11, 1, tzinfo=UTC)
    invoice = closing.close_tenant(migrated_data, "tn_1", until, least_cents=0)
    with unit_of_work(migrated_data) as session:
        old, new = (
            queries.get_invoice(session, invoice_id=each, tenant_id="tn_1").lines for each in ("inv_1", invoice.id)
        )
        stored = session.connection().exec_driver_sql(KINDS).all()
    assert [(kind, int(quantity)) for kind, quantity in stored] == [
        ("input_tokens", 200), ("output_tokens", 44), ("kv_page_seconds", 1202),
    ]  # fmt: skip
    assert [(line.kind, str(line.quantity), line.amount_nanos) for line in old] == [
        ("uncached_input_tokens", "200", 30_000), ("output_tokens", "44", 26_400), ("kv_page_seconds", "1.202", 1_202),
    ]  # fmt: skip
    assert (invoice.number, invoice.period_start) == ("TNR-000002", datetime(2026, 10, 1, tzinfo=UTC))
    assert [(line.kind, int(line.quantity), line.late_for and line.late_for.month) for line in new] == [
        ("uncached_input_tokens", 100, None), ("output_tokens", 22, None), ("kv_page_seconds", 0, None),
        ("uncached_input_tokens", 100, 9), ("output_tokens", 22, 9), ("kv_page_seconds", 0, 9),
    ]  # fmt: skip
    with migrated_data.connect() as connection:
        assert connection.exec_driver_sql("SELECT sum(amount_nanos) FROM entries").scalar_one() == 0
        months = connection.exec_driver_sql(MONTHS).all()
    assert [(month.month, tokens, int(nanos)) for month, tokens, nanos in months] == [
        (9, 300, 86_403),
        (10, 100, 28_801),
    ]


def test_what_the_first_release_left_in_redis_is_carried_over(migrated_data, redis_settings):
    """The totals of an engine that has ended, and an event that was not recorded yet, as they were written then."""
    with connect_redis(redis_settings, BillingSettings()) as redis:
        redis.hset(
            redis_keys.ENGINE_COUNTERS,
            "rep_1/boot_1",
            b'{"prompt_tokens":410,"generation_tokens":93,"probe_prompt_tokens":10,"probe_generation_tokens":5}',
        )
        stream = UsageStream(redis, "tests")
        stream.ensure_group()
        redis.xadd(redis_keys.USAGE_STREAM, {"event": OLD_EVENT})
        EngineCountKeeper(migrated_data, redis).run_once()
        redis.delete(redis_keys.ENGINE_COUNTERS)
        Meter(migrated_data, stream, BillingSettings()).process(stream.read(count=10, block_ms=None))
        with unit_of_work(migrated_data) as session:
            found = audit.reconcile(session, redis)
    assert (found.engine_tokens, found.ledger_tokens) == (488, 488 + 120)
    assert (found.unbilled_tokens, found.invoiced_tokens, found.ledger_drift_nanos) == (244 + 120, 244, 0)
    assert (found.unprocessed_events, found.dead_letters) == (0, 0)


def test_old_invoices_begin_the_chain_of_documents_and_are_open_or_paid(migrated_data):
    new = closing.close_tenant(migrated_data, "tn_1", datetime(2026, 11, 1, tzinfo=UTC), least_cents=0)
    with unit_of_work(migrated_data) as session:
        verified = verify(session)
        old = queries.read_document(session, "inv_1")
    assert (verified.documents, verified.findings) == (2, [])
    assert (old.invoice.number, old.invoice.status, old.invoice.net_cents) == ("TNR-000001", "paid", 0)
    assert [event.kind for event in old.events] == ["finalized", "open"]
    assert new.number == "TNR-000002"
    with migrated_data.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql("UPDATE invoice_lines SET base_model = 'basf' WHERE id = 'il_1'")
    with unit_of_work(migrated_data) as session:
        assert [finding.problem for finding in verify(session).findings] == ["changed", "follows"]


def test_the_documents_migration_goes_down_and_up_again(migrated_data):
    settings = db.PostgresSettings(postgres_dsn=migrated_data.url.render_as_string(hide_password=False))
    config = alembic_config(settings)
    with migrated_data.connect() as connection:
        before = connection.exec_driver_sql("SELECT sha256 FROM documents").all()
    command.downgrade(config, BEFORE_DOCUMENTS)
    with migrated_data.connect() as connection:
        assert connection.exec_driver_sql("SELECT number, status FROM invoices").all() == [(1, "finalised")]
    command.upgrade(config, "head")
    with migrated_data.connect() as connection:
        assert connection.exec_driver_sql("SELECT sha256 FROM documents").all() == before


def test_the_move_to_sums_cannot_be_undone_once_usage_is_recorded(migrated_data):
    settings = db.PostgresSettings(postgres_dsn=migrated_data.url.render_as_string(hide_password=False))
    with pytest.raises(RuntimeError, match="restore a backup"):
        command.downgrade(alembic_config(settings), "2026_11_23_0940")


BEFORE_SERVICE_TIERS = "2026_11_24_1160"
AMENDED = "SELECT request_id, service_tier, amount_nanos FROM usage_now ORDER BY 1"


def test_usage_before_service_tiers_is_of_the_default_tier_and_changes_no_document(migrated_data):
    settings = db.PostgresSettings(postgres_dsn=migrated_data.url.render_as_string(hide_password=False))
    config = alembic_config(settings)
    sums = "SELECT tenant_id, hour, requests, output_nanos FROM usage_hours ORDER BY 1, 2"
    command.downgrade(config, BEFORE_SERVICE_TIERS)
    with migrated_data.connect() as connection:
        before = connection.exec_driver_sql(sums).all()
        assert before
        assert "service_tier" not in {each["name"] for each in sa.inspect(connection).get_columns("usage_now")}
    command.upgrade(config, "head")
    with migrated_data.connect() as connection:
        assert connection.exec_driver_sql(sums).all() == before
        assert set(connection.exec_driver_sql("SELECT service_tier FROM usage_hours").scalars()) == {"default"}
        assert {row.service_tier for row in connection.exec_driver_sql(AMENDED)} == {"default"}
        assert "service_tier" in sa.inspect(connection).get_pk_constraint("usage_hours")["constrained_columns"]
    with unit_of_work(migrated_data) as session:
        assert verify(session).findings == []
