"""Gives each invoice and credit note its number and its link in the chain of documents.

Numbers have no gaps: the lock that gives one is held until the commit. It is taken when everything else of the
transaction is written and checked, but for the notification that names the number. So closes of other tenants wait for
a few inserts and a commit only.

A document is hashed with all its stored values and those of its parts, as JSON with sorted keys, in UTC. A null value
is left out. So a new column that is null in old rows changes no old hash; a column that is renamed or removed would,
and needs a new format beside this one.
"""

from hashlib import sha256
from typing import Final, Literal

import sqlalchemy as sa
from sqlmodel import Session

from billing.invoices.models import Document
from billing.locks import serialize_decision

DocumentKind = Literal["invoice", "credit_note"]

CHAIN_START: Final = "0" * 64
FORMAT: Final = 1
_PREFIX: Final = {"invoice": "TNR", "credit_note": "TNR-C"}

_INVOICE: Final = """
SELECT i.id, jsonb_build_object(
    'invoice', to_jsonb(i),
    'lines', (SELECT jsonb_agg(to_jsonb(l) ORDER BY l.position) FROM invoice_lines l WHERE l.invoice_id = i.id),
    'credits', (SELECT jsonb_agg(to_jsonb(c) ORDER BY c.position) FROM invoice_credits c WHERE c.invoice_id = i.id),
    'taxes', (SELECT jsonb_agg(to_jsonb(t) ORDER BY t.position) FROM invoice_tax_lines t WHERE t.invoice_id = i.id)
) AS content FROM invoices i WHERE i.id = ANY(:ids)
"""
_CREDIT_NOTE: Final = """
SELECT n.id, jsonb_build_object(
    'credit_note', to_jsonb(n),
    'taxes', (SELECT jsonb_agg(to_jsonb(t) ORDER BY t.position) FROM credit_note_tax_lines t
        WHERE t.credit_note_id = n.id)
) AS content FROM credit_notes n WHERE n.id = ANY(:ids)
"""
_HASHES: Final = {
    kind: sa.text(
        "SELECT id, encode(sha256(convert_to(jsonb_strip_nulls(content)::text, 'UTF8')), 'hex')"  # noqa: S608 - constants
        f" FROM ({content}) documents"
    )
    for kind, content in (("invoice", _INVOICE), ("credit_note", _CREDIT_NOTE))
}
_SEAL: Final = sa.text("""
INSERT INTO documents (position, kind, number, document_id, tenant_id, content_format, content_sha256, previous_sha256,
    sha256, created_at)
SELECT position, :kind, number, :document_id, :tenant_id, :format, :content_sha256, previous,
    encode(sha256(convert_to(concat_ws('|', position, :kind, number, :document_id, :format, :content_sha256, previous),
        'UTF8')), 'hex'), clock_timestamp()
FROM (
    SELECT coalesce((SELECT max(position) FROM documents), 0) + 1 AS position,
        coalesce((SELECT max(number) FROM documents WHERE kind = :kind), 0) + 1 AS number,
        coalesce((SELECT sha256 FROM documents ORDER BY position DESC LIMIT 1), :start) AS previous
) next
RETURNING number
""").bindparams(
    sa.bindparam("kind", type_=sa.String),
    sa.bindparam("document_id", type_=sa.String),
    sa.bindparam("format", type_=sa.Integer),
    sa.bindparam("content_sha256", type_=sa.String),
)
_CHECK_PARTS: Final = (
    "SET CONSTRAINTS invoices_are_whole, credit_notes_are_whole, transfers_are_whole, invoice_events_are_posted,"
    " credit_notes_are_posted, credit_entries_fit_invoice IMMEDIATE"
)


def seal(session: Session, kind: DocumentKind, document_id: str, tenant_id: str) -> str:
    """Give a document that is written in full its number, in its printed form. The caller commits soon: every other
    document waits for that. Raises Unavailable when other documents hold the lock for too long.
    """
    session.flush()
    session.connection().exec_driver_sql(_CHECK_PARTS)
    content_sha256 = content_hashes(session, kind, [document_id])[document_id]
    serialize_decision(session, "the next document's number")
    values = {
        "kind": kind,
        "document_id": document_id,
        "tenant_id": tenant_id,
        "format": FORMAT,
        "content_sha256": content_sha256,
        "start": CHAIN_START,
    }
    return printed_number(kind, session.connection().execute(_SEAL, values).scalar_one())


def printed_number(kind: DocumentKind, number: int) -> str:
    """A number as it is printed: ``TNR-000001`` of an invoice, ``TNR-C-000001`` of a credit note."""
    return f"{_PREFIX[kind]}-{number:06d}"


def link_hash(document: Document, *, content_sha256: str, previous_sha256: str) -> str:
    """The hash of a document with this content and of all before it. ``_SEAL`` computes the same in the database."""
    parts = (
        document.position,
        document.kind,
        document.number,
        document.document_id,
        document.content_format,
        content_sha256,
        previous_sha256,
    )
    return sha256("|".join(map(str, parts)).encode()).hexdigest()


def content_hashes(session: Session, kind: DocumentKind, document_ids: list[str]) -> dict[str, str]:
    """The SHA-256 of the content of these documents, by id, computed from what the database holds now. A document that
    does not exist is left out.
    """
    zone = session.connection().exec_driver_sql("SHOW timezone").scalar_one()
    assert zone == "UTC", "instants are hashed in UTC; core.db.connect sets the zone"
    rows = session.connection().execute(_HASHES[kind], {"ids": document_ids}).all()
    return {row[0]: row[1] for row in rows}
