"""Periods close while usage arrives, and the same usage in another database gives the same invoices."""

import random
import secrets
import threading
from datetime import timedelta

import msgspec
import pytest

from billing.invoices.views import InvoiceView
from billing.invoicing import closing
from core import clock, db
from core.struct_types import view_of
from tests.conftest import create_database, temporary_database
from tests.integration.billing.conftest import Stage

# The invoices whose period holds a record, of all its tenant's: by when it settled, or by where it is late for.
PLACES = """
SELECT r.request_id, r.tenant_id, r.amount_nanos, array_agg(i.id) AS invoices, min(i.place) AS place,
    min(s.place) AS settled
FROM usage_records r
LEFT JOIN (SELECT *, row_number() OVER (PARTITION BY tenant_id ORDER BY period_start) AS place FROM invoices) i
    ON i.tenant_id = r.tenant_id AND coalesce(r.late_from, r.settled_at) >= i.period_start
    AND coalesce(r.late_from, r.settled_at) < i.period_end
LEFT JOIN (SELECT *, row_number() OVER (PARTITION BY tenant_id ORDER BY period_start) AS place FROM invoices) s
    ON s.tenant_id = r.tenant_id AND r.settled_at >= s.period_start AND r.settled_at < s.period_end
GROUP BY 1, 2, 3
"""


@pytest.mark.scenario(162)
def test_each_event_that_arrives_while_a_period_closes_is_on_one_invoice_of_this_or_the_next_period(stage):
    """Three periods, each closed while its last events are recorded."""
    tenants = [stage.tenant() for _ in range(3)]
    stage.bill(*(stage.event(tenant, output_tokens=100_000) for tenant in tenants))
    published = len(tenants)
    for _ in range(3):
        events = [stage.event(tenant, output_tokens=100_000) for tenant in tenants for _ in range(20)]
        stage.publish(*events)
        published += len(events)
        together, failed = threading.Barrier(2), []

        def close(together=together, failed=failed) -> None:
            together.wait()
            failed += closing.close_all(stage.engine, least_cents=0).failed

        closer = threading.Thread(target=close)
        closer.start()
        together.wait()
        while entries := stage.stream.read(count=7, block_ms=None):
            stage.meter.process(entries)
        closer.join()
        assert failed == []
    stage.close()
    placed = stage.rows(PLACES)
    assert len(placed) == published
    assert all(len(row["invoices"]) == 1 and row["invoices"][0] is not None for row in placed)
    assert all(row["settled"] <= row["place"] <= row["settled"] + 1 for row in placed)
    for invoice in stage.rows("SELECT id, amount_nanos FROM invoices"):
        mine = [row["amount_nanos"] for row in placed if row["invoices"] == [invoice["id"]]]
        assert sum(mine) == invoice["amount_nanos"]
    counted = "SELECT sum(request_count) FROM invoice_lines WHERE kind = 'output_tokens'"
    assert stage.value(counted) == published
    assert stage.value("SELECT count(*) FROM (SELECT FROM invoices GROUP BY tenant_id HAVING count(*) > 4) more") == 0


def printed(stage: Stage, tenants: list[str]) -> dict[str, bytes]:
    """Each tenant's invoice as JSON, without what names a row of this database or says when it was written."""
    found = {}
    for row in stage.rows("SELECT id, tenant_id FROM invoices"):
        detail = stage.invoice(row["id"])
        invoice = view_of(detail, InvoiceView, id="", created_at=detail.period_end)
        lines = tuple(msgspec.structs.replace(line, id="") for line in detail.lines)
        found[row["tenant_id"]] = msgspec.json.encode((invoice, lines))
    assert sorted(found) == sorted(tenants)
    return found


@pytest.fixture
def postgres_settings(postgres_server, migrated_template):
    """A database to which nothing else has a connection, so that it can be copied."""
    with temporary_database(postgres_server, migrated_template) as settings:
        yield settings


@pytest.fixture
def copied(stage, postgres_server, postgres_settings):
    """A second database as the stage's is when the test asks for it, and how to connect to it."""
    engines = []

    def copy() -> tuple[Stage, str]:
        stage.engine.dispose()  # a database with connections cannot be copied
        name = postgres_settings.postgres_dsn.rpartition("/")[2]
        settings = create_database(postgres_server, f"second_{secrets.token_hex(6)}", name)
        engines.append(db.connect(settings))
        return Stage(engines[0], stage.redis, stage.settings), settings.postgres_dsn

    yield copy
    for engine in engines:
        engine.dispose()


@pytest.mark.scenario(66)
@pytest.mark.scenario(165)
def test_the_same_usage_in_a_second_database_gives_byte_identical_invoices(stage, copied):
    """Both begin with the same tenants and prices. Usage arrives in another order, in other batches and twice."""
    tenants = [stage.tenant() for _ in range(5)]
    other, _ = copied()
    until = stage.now()
    events = [
        stage.event(
            tenants[number % 5],
            settled_at_ms=clock.to_ms(until - timedelta(hours=5)) + 9_973 * number,
            adapter_id=f"ad_{number % 7}" if number % 3 else None,
            key_id=f"key_{number % 2}",
            output_tokens=1_000 + number,
        )
        for number in range(150)
    ]
    stage.bill(*events)
    chance = random.Random(165)
    chance.shuffle(events)
    events += events[:20]
    while events:
        taken = chance.randrange(1, 50)
        other.bill(*events[:taken])
        del events[:taken]
    assert len(stage.close(until)) == len(other.close(until)) == len(tenants)
    assert printed(stage, tenants) == printed(other, tenants)
