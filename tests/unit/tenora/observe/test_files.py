"""The rules, alerts and dashboards name series that processes serve, and the committed files are those of the code."""

import json
import re
from pathlib import Path

import pytest

from tenora.docs.reference import render
from tenora.observe.dashboards import DASHBOARDS
from tenora.observe.files import GROUPS, files
from tenora.observe.fleet_alerts import FAILURE_MODES
from tenora.observe.recording_rules import RULES

ROOT = Path(__file__).parents[4]
ALERTS = [alert for _, alerts in GROUPS for alert in alerts]
ALERTED = {name for alert in ALERTS for name in re.findall(r"tenora_[a-z_]+", alert.expr)}
PARTS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
ROWS = re.findall(r"^\| `(tenora_[a-z_]+)` \| (\w+) \| ([\w, ]*) \|", render("metrics"), re.MULTILINE)
SERVED = {
    name.removesuffix("_total") + part: {label.strip() for label in labels.split(",")}
    for name, kind, labels in ROWS
    for part in PARTS[kind]
}
RECORDED = {rule.record for rule in RULES}
PANELS = [expr for dashboard in DASHBOARDS for panel in dashboard.panels for _, expr in panel.queries]
EXPRESSIONS = {*PANELS, *(alert.expr for alert in ALERTS), *(rule.expr for rule in RULES)}
SELECTOR = re.compile(r"([a-z]+:[a-z0-9_:]+|tenora_[a-z_]+)(?:\{([^}]*)\})?")


@pytest.mark.parametrize("path", files())
def test_a_committed_file_is_that_of_the_code(path):
    assert (ROOT / path).read_text() == files()[path], "run: make reference"


def test_no_other_file_lies_beside_them():
    committed = [*(ROOT / "deploy" / "grafana").iterdir(), *(ROOT / "deploy" / "prometheus").iterdir()]
    assert {str(path.relative_to(ROOT)) for path in committed} <= files().keys()


@pytest.mark.parametrize("expr", sorted(EXPRESSIONS))
def test_every_expression_names_series_that_are_served_with_their_labels(expr):
    found = SELECTOR.findall(expr)
    assert found
    for name, matchers in found:
        assert name in SERVED or name in RECORDED
        if name in SERVED:
            labels = set(re.findall(r"(\w+)(?:=~|!=|=)", matchers)) - {"le"}
            assert labels <= SERVED[name], name


def test_series_carry_no_tenant():
    assert not [name for name, labels in SERVED.items() if labels & {"tenant", "tenant_id", "key", "key_id", "adapter"}]


def test_every_alert_has_a_runbook_and_a_name_of_its_own():
    headings = re.findall(r"^## (.+)$", files()["docs/RUNBOOKS.md"], re.MULTILINE)
    anchors = {f"RUNBOOKS.md#{re.sub(r'[^a-z0-9 -]', '', each.lower()).replace(' ', '-')}" for each in headings}
    assert [alert.name for alert in ALERTS if alert.runbook_url not in anchors] == []
    assert len({alert.name for alert in ALERTS}) == len({alert.title for alert in ALERTS}) == len(ALERTS)


def test_every_failure_mode_has_a_dashboard():
    assert [each.alert for each in DASHBOARDS if each.alert] == list(FAILURE_MODES)


def test_dashboards_have_ids_of_their_own_and_panels_that_do_not_overlap():
    pages = [json.loads(text) for path, text in files().items() if path.endswith(".json")]
    assert len({page["uid"] for page in pages}) == len(pages) == len(DASHBOARDS)
    for page in pages:
        assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in page["panels"]}) == len(page["panels"])


@pytest.mark.parametrize("what", ["dead_letters", "lost", "stale_prices", "quota_drifts", "tenant_failures"])
def test_money_that_may_be_wrong_raises_an_alert(what):
    assert f"tenora_billing_{what}_total" in ALERTED


def test_a_metric_that_asks_for_an_alert_has_one():
    asked = re.findall(r"^\| `(tenora_[a-z_]+)` \|.* Alert (?:on any|above|when)", render("metrics"), re.MULTILINE)
    assert asked
    summed = {"tenora_billing_reconciliation_unexplained"}  # in tenora_billing_reconciliation_differences
    assert [name for name in asked if name not in ALERTED | summed] == []
