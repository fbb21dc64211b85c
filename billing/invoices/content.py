"""What is hashed of a document: all its stored values and those of its parts, as JSON with sorted keys, in UTC.

A null value is left out. So a new column that is null in old rows changes no old hash; a column that is renamed or
removed would, and needs a new format beside this one.
"""

from typing import Final, Literal

import sqlalchemy as sa
from sqlmodel import Session

DocumentKind = Literal["invoice", "credit_note"]

FORMAT: Final = 1

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


def content_hashes(session: Session, kind: DocumentKind, document_ids: list[str]) -> dict[str, str]:
    """The SHA-256 of the content of these documents, by id, computed from what the database holds now. A document that
    does not exist is left out.
    """
    zone = session.connection().exec_driver_sql("SHOW timezone").scalar_one()
    assert zone == "UTC", "instants are hashed in UTC; core.db.connect sets the zone"
    rows = session.connection().execute(_HASHES[kind], {"ids": document_ids}).all()
    return {row[0]: row[1] for row in rows}
