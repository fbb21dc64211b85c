"""Gives each invoice and credit note its number and its link in the chain of documents.

Numbers have no gaps: the lock that gives one is held until the commit. It is taken last, when everything else of the
transaction is written and checked, so that closes of other tenants wait for two statements and a commit only.
"""

from hashlib import sha256
from typing import Final

import sqlalchemy as sa
from sqlmodel import Session

from billing.invoices.content import FORMAT, DocumentKind, content_hashes
from billing.invoices.models import Document
from billing.locks import serialize_decision

CHAIN_START: Final = "0" * 64
_PREFIX: Final = {"invoice": "TNR", "credit_note": "TNR-C"}

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
    """Give a document that is written in full its number, in its printed form. The caller commits next: every other
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
