"""Closes the same usage in two databases, and compares every byte of the invoices."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from benchmarks.billing.close import timed_close
from benchmarks.billing.seed import seed

# All that an invoice and its lines say, but for what names a row of this database or says when it was written.
_PRINTED = """
SELECT i.tenant_id, encode(sha256(convert_to((
    (to_jsonb(i) - '{id,created_at}'::text[]) || jsonb_build_object('number', d.number, 'lines', (
        SELECT jsonb_agg(to_jsonb(l) - '{id,invoice_id,price_version_id}'::text[] ORDER BY l.position)
        FROM invoice_lines l WHERE l.invoice_id = i.id
    )))::text, 'UTF8')), 'hex')
FROM invoices i JOIN documents d ON d.document_id = i.id
"""


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
