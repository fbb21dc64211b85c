"""Closes every tenant's period and times it, in this process or in one of its own, once or in two databases."""

import multiprocessing
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from typing import NamedTuple

import click
import sqlalchemy as sa

from benchmarks.billing.seed import seed
from billing.invoicing import closing
from core import db
from core.settings import PostgresSettings

# All that an invoice and its lines say, but for what names a row of this database or says when it was written.
_PRINTED = """
SELECT i.tenant_id, encode(sha256(convert_to((
    (to_jsonb(i) - '{id,created_at}'::text[]) || jsonb_build_object('number', d.number, 'lines', (
        SELECT jsonb_agg(to_jsonb(l) - '{id,invoice_id,price_version_id}'::text[] ORDER BY l.position)
        FROM invoice_lines l WHERE l.invoice_id = i.id
    )))::text, 'UTF8')), 'hex')
FROM invoices i JOIN documents d ON d.document_id = i.id
"""


def timed_close(engine: sa.Engine, tenants: str, until: datetime | None = None) -> float:
    """Seconds to close every subscribed tenant that is not closed ``until`` then; ``tenants`` is only printed."""
    begun = time.monotonic()
    made, failed = closing.close_all(engine, until)
    took = time.monotonic() - begun
    assert not failed, failed[:3]
    click.echo(f"{len(made)} invoices of {tenants} in {took:.1f} s")
    return took


class CloseProcess:
    """A close beside the process that records, as the schedule of another billing worker would run it."""

    def __init__(self, settings: PostgresSettings, tenants: str) -> None:
        spawned = multiprocessing.get_context("spawn")
        self._took: SimpleQueue[float] = spawned.SimpleQueue()
        self._process: BaseProcess = spawned.Process(target=_close, args=(settings, tenants, self._took))

    def start(self) -> None:
        self._process.start()

    def is_running(self) -> bool:
        return self._process.is_alive()

    def seconds(self) -> float:
        """Wait for the close. Returns how long it took."""
        self._process.join()
        assert self._process.exitcode == 0, "the close failed"
        return self._took.get()


def _close(settings: PostgresSettings, tenants: str, took: "SimpleQueue[float]") -> None:
    engine = db.connect(settings)
    took.put(timed_close(engine, tenants))
    engine.dispose()


class Repeated(NamedTuple):
    """The slower of the two closes of many tenants and of one, and the tenants whose invoices differ."""

    many_s: float
    one_s: float
    differing: int


def repeated_closes(
    database: Callable[[str], AbstractContextManager[sa.Engine]], *, tenants: int, records: int, at: datetime
) -> Repeated:
    """Close ``records`` of ``tenants`` and as many of one tenant, twice. ``at`` is when the newest were used."""
    took: list[tuple[float, float]] = []
    invoices: list[dict[str, str]] = []
    for name in ("first", "second"):
        with database(name) as engine:
            seed(engine, prefix="tn_many_", tenants=tenants, records=records, first=0, at=at)
            many_s = timed_close(engine, f"{tenants} tenants in the {name} database", at)
            seed(engine, prefix="tn_one_", tenants=1, records=records, first=records, at=at)
            took.append((many_s, timed_close(engine, f"one tenant in the {name} database", at)))
            with engine.connect() as connection:
                found = connection.exec_driver_sql(_PRINTED).all()
            invoices.append(dict(map(tuple, found)))
    assert len(invoices[0]) == tenants + 1, "one invoice for each tenant"
    differing = sum(invoices[0].get(each) != invoices[1].get(each) for each in invoices[0].keys() | invoices[1].keys())
    return Repeated(max(many for many, _ in took), max(one for _, one in took), differing)
