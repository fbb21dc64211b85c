"""The programs in docs/how-to/read-usage.md and get-invoices.md, run as they stand there, and the demo's own copy."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from billing.invoicing import closing
from tenora.demo.control import ControlPlane
from tenora.demo.documents import save_invoice_documents
from tests.fixtures.control_plane.usage import used

HOW_TO = Path(__file__).parents[4] / "docs" / "how-to"


@pytest.fixture
def billed(api, engine, record):
    """A tenant with six requests on an invoice."""
    tenant = api.tenant()
    record(*(used(tenant.id, adapter_id=f"ad_{number % 2}") for number in range(6)))
    return tenant, closing.close_all(engine, least_cents=0).invoices[0]


def run_example(page: str, api, tenant, folder: Path) -> list[str]:
    (example,) = re.findall(r"```python\n(.*?)```", (HOW_TO / page).read_text(), flags=re.DOTALL)
    environment = os.environ | {"TENORA_CONTROL_URL": api.url, "TENORA_API_KEY": tenant.key}
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_example_reads_usage_and_costs(api, billed, tmp_path):
    printed = run_example("read-usage.md", api, billed[0], tmp_path)
    assert "used tiny-instruct ad_0 300 120 21" in printed
    assert "cost tiny-instruct, output_tokens 0.000016800 usd" in printed


def test_the_example_saves_and_checks_an_invoice(api, billed, tmp_path):
    tenant, invoice = billed
    printed = run_example("get-invoices.md", api, tenant, tmp_path)
    assert "180 token x 100 nanodollars = 18000 nanodollars in 3 requests" in printed
    assert (tmp_path / f"{invoice.number}.pdf").read_bytes().startswith(b"%PDF-")
    assert (tmp_path / f"{invoice.number}.csv").read_text().count("\n") == 9


def test_the_demo_saves_the_pdf_and_the_explanation_under_its_home(api, billed, tmp_path):
    tenant, invoice = billed
    control = ControlPlane(api.url, tenant.key)
    try:
        saved = save_invoice_documents(control, invoice.id, tmp_path)
        again = save_invoice_documents(control, invoice.id, tmp_path)
    finally:
        control.close()
    assert saved == again
    assert saved.pdf == tmp_path / "invoices" / f"{invoice.number}.pdf"
    assert saved.pdf.read_bytes().startswith(b"%PDF-")
    explanation = json.loads(saved.explanation.read_text())
    assert explanation["invoice"]["number"] == invoice.number
    assert sum(line["line"]["amount_nanos"] for line in explanation["lines"]) == invoice.amount_nanos
    assert saved.requests == 6
