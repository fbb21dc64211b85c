"""The alerts that operators copy name metrics that exist, and cover those of money that say so themselves."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[4] / "docs"
ALERTS = set(re.findall(r"tenora_[a-z_]+", (DOCS / "how-to" / "set-up-alerts.md").read_text()))
ROWS = re.findall(r"^\| `(tenora_[a-z_]+)` \| (\w+)", (DOCS / "reference" / "metrics.md").read_text(), re.MULTILINE)
SERVED = {name.removesuffix("_total") + "_total" if kind == "counter" else name for name, kind in ROWS}


def test_every_alert_is_on_a_metric_as_processes_serve_it():
    assert SERVED >= ALERTS


@pytest.mark.parametrize("what", ["dead_letters", "lost", "stale_prices", "quota_drifts", "tenant_failures"])
def test_money_that_may_be_wrong_raises_an_alert(what):
    assert f"tenora_billing_{what}_total" in ALERTS
