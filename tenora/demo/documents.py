"""Saves an invoice as a person keeps it: the PDF, and its explanation down to each request as JSON."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tenora.demo.control import ControlPlane

_FOLDER: Final = "invoices"


class SavedDocuments(NamedTuple):
    """The files of one invoice, and how many requests its explanation names."""

    pdf: Path
    explanation: Path
    requests: int


def save_invoice_documents(control: ControlPlane, invoice_id: str, home: Path) -> SavedDocuments:
    """Write ``invoices/NUMBER.pdf`` and ``invoices/NUMBER.explain.json`` under ``home``. Raises RuntimeError when the
    requests of a line do not sum to it, or when one has another amount if it is rated again.
    """
    path = f"/api/v1/invoices/{invoice_id}"
    invoice = control.get(f"{path}/explain", limit="1")["invoice"]
    lines, request_ids = [], set()
    for explained in control.items(f"{path}/explain"):
        requests = list(_requests(control, explained)) if explained["requests_url"] is not None else []
        request_ids |= {each["request_id"] for each in requests}
        lines.append(explained | {"requests": requests})
    folder = home / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    pdf, explanation = folder / f"{invoice['number']}.pdf", folder / f"{invoice['number']}.explain.json"
    pdf.write_bytes(control.call("GET", f"{path}.pdf").content)
    explanation.write_text(json.dumps({"invoice": invoice, "lines": lines}, indent=1) + "\n")
    return SavedDocuments(pdf, explanation, len(request_ids))


def _requests(control: ControlPlane, explained: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for page in control.pages(explained["requests_url"], items=1000):
        if not page["matches"] or not all(each["rerated_equal"] for each in page["data"]):
            raise RuntimeError(f"line {explained['line']['id']} is not the sum of its requests: {page['found_nanos']}")
        yield from page["data"]
