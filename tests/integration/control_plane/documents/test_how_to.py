"""The programs in docs/how-to/read-usage.md and get-invoices.md, run as they stand there, and the demo's own copy."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from billing.invoicing import closing
from billing.settings import BillingSettings
from billing.usage.metering import Meter
from billing.usage.stream import UsageStream
from core import clock, redis_keys
from core.contracts.usage import UsageEvent
from core.ids import new_id
from tenora.demo.control import ControlPlane
from tenora.demo.documents import save_invoice_documents

HOW_TO = Path(__file__).parents[4] / "docs" / "how-to"


@pytest.fixture
def billed(api, engine, redis):
    """A tenant with six requests on an invoice."""
    tenant = api.tenant()
    stream = UsageStream(redis, "tests")
    stream.ensure_group()
    for number in range(6):
        settled_at_ms = clock.now_ms() - 1_000 + number
        event = UsageEvent(
            request_id=new_id("req"), tenant_id=tenant.id, key_id="key_1", base_model="tiny-instruct",
            adapter_id=f"ad_{number % 2}", revision_id=None, replica_id="rep_1", outcome="done",
            started_at_ms=settled_at_ms - 9, settled_at_ms=settled_at_ms,
            input_tokens=100, cached_tokens=40, output_tokens=7, kv_page_ms=9_500,
        )  # fmt: skip
        redis.xadd(redis_keys.USAGE_STREAM, {"event": msgspec.json.encode(event)})
    Meter(engine, stream, BillingSettings()).process(stream.read(count=500, block_ms=None))
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
