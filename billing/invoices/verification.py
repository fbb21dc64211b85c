"""Verifies the chain of documents against what the database holds: contents, links, numbers, and states.

It reads the documents in the order of the chain, a page at a time, and computes everything again; it trusts no stored
hash but that of the chain's last document, which an operator may compare with a copy kept elsewhere.
"""

from collections import Counter
from typing import Final, Literal, NamedTuple, cast

import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.invoices.models import Document, Invoice
from billing.invoices.numbering import (
    CHAIN_START,
    FORMAT,
    DocumentKind,
    content_hashes,
    link_hash,
    printed_number,
)
from billing.invoices.statuses import EventChange, fold

_PAGE: Final = 500
Problem = Literal["changed", "missing", "gap", "follows", "unnumbered", "state"]


class DocumentFinding(NamedTuple):
    """What is wrong with a document. ``follows`` documents are unchanged, but hang on one that is not."""

    number: str
    document_id: str
    problem: Problem

    def __str__(self) -> str:
        return f"{self.number} {self.document_id}: {_MEANING[self.problem]}"


_MEANING: Final[dict[Problem, str]] = {
    "changed": "its content, number or hash is not what was sealed",
    "missing": "it is in the chain, but does not exist",
    "gap": "documents before it are missing",
    "follows": "unchanged, but its chain follows a document that was changed",
    "unnumbered": "it exists, but is not in the chain",
    "state": "its status or amounts are not what its events give",
}


class Verified(NamedTuple):
    """How many documents were read, the hash of the last one, and what is wrong."""

    documents: int
    head_sha256: str
    findings: list[DocumentFinding]


def verify(session: Session) -> Verified:
    """Read every document. The session's transaction must see one state of the database (REPEATABLE READ)."""
    findings: list[DocumentFinding] = []
    numbers: Counter[str] = Counter()
    previous, head, position, broken = CHAIN_START, CHAIN_START, 0, False
    while page := _page(session, position):
        hashes = _content_hashes(session, page)
        for document in page:
            content = hashes.get(document.document_id)
            expected = link_hash(document, content_sha256=content or "", previous_sha256=previous)
            in_place = document.position == position + 1 and document.number == numbers[document.kind] + 1
            numbers[document.kind] = document.number
            problem = _problem(document, content, in_place=in_place, linked=document.sha256 == expected, broken=broken)
            if problem is not None:
                broken = True
                findings.append(_finding(document, problem))
            # Later links are checked on what this document's content gives now, so all that follow a change differ.
            previous, head, position = expected, document.sha256, document.position
    findings += _unnumbered(session) + _wrong_states(session)
    return Verified(position, head, findings)


def _problem(document: Document, content: str | None, *, in_place: bool, linked: bool, broken: bool) -> Problem | None:
    if content is None:
        return "missing"
    if content != document.content_sha256:
        return "changed"
    if not in_place:
        return "gap"
    if linked:
        return None
    return "follows" if broken else "changed"


def _page(session: Session, after: int) -> list[Document]:
    statement = select(Document).where(Document.position > after).order_by(col(Document.position)).limit(_PAGE)
    return list(session.exec(statement))


def _content_hashes(session: Session, page: list[Document]) -> dict[str, str]:
    assert all(document.content_format == FORMAT for document in page), "one format exists"
    found: dict[str, str] = {}
    for kind in ("invoice", "credit_note"):
        ids = [document.document_id for document in page if document.kind == kind]
        found |= content_hashes(session, kind, ids)
    return found


def _finding(document: Document, problem: Problem) -> DocumentFinding:
    kind = cast("DocumentKind", document.kind)
    return DocumentFinding(printed_number(kind, document.number), document.document_id, problem)


_UNNUMBERED: Final = sa.text("""
SELECT id FROM (SELECT id FROM invoices UNION ALL SELECT id FROM credit_notes) documents_made
WHERE NOT EXISTS (SELECT FROM documents WHERE document_id = id) ORDER BY id
""")
_EVENTS: Final = sa.text("""
SELECT e.invoice_id, e.kind, e.amount_cents, coalesce(n.total_cents, 0) AS credited_cents, e.status, e.amount_due_cents,
    e.paid_cents, e.credited_cents AS credited_in_all
FROM invoice_events e LEFT JOIN credit_notes n ON n.id = e.credit_note_id
WHERE e.invoice_id = ANY(:ids) ORDER BY e.invoice_id, e.seq
""")


def _unnumbered(session: Session) -> list[DocumentFinding]:
    found = session.connection().execute(_UNNUMBERED).scalars()
    return [DocumentFinding("without a number", document_id, "unnumbered") for document_id in found]


def _wrong_states(session: Session) -> list[DocumentFinding]:
    """Invoices whose last event does not say what all of their events give, or whose first one is not their total."""
    findings: list[DocumentFinding] = []
    after = ""
    while invoices := _invoices(session, after):
        after = max(invoices)
        events: dict[str, list[sa.RowMapping]] = {invoice_id: [] for invoice_id in invoices}
        for row in session.connection().execute(_EVENTS, {"ids": list(invoices)}).mappings():
            events[row["invoice_id"]].append(row)
        findings += [
            DocumentFinding(invoices[invoice_id].number, invoice_id, "state")
            for invoice_id, rows in events.items()
            if not _adds_up(rows, invoices[invoice_id].total_cents)
        ]
    return findings


class _Total(NamedTuple):
    number: str
    total_cents: int


def _invoices(session: Session, after: str) -> dict[str, _Total]:
    statement = (
        select(Invoice.id, Document.number, Invoice.total_cents)
        .join(Document, col(Document.document_id) == col(Invoice.id))
        .where(Invoice.id > after)
        .order_by(col(Invoice.id))
        .limit(_PAGE)
    )
    return {each: _Total(printed_number("invoice", number), total) for each, number, total in session.exec(statement)}


def _adds_up(rows: list[sa.RowMapping], total_cents: int) -> bool:
    if not rows or (rows[0]["kind"], rows[0]["amount_cents"]) != ("finalized", total_cents):
        return False
    state = fold(
        EventChange(kind=row["kind"], amount_cents=row["amount_cents"], credited_cents=row["credited_cents"])
        for row in rows
    )
    stored = rows[-1]
    return (state.status, state.amount_due_cents, state.paid_cents, state.credited_cents) == (
        stored["status"],
        stored["amount_due_cents"],
        stored["paid_cents"],
        stored["credited_in_all"],
    )
