"""Writes what the alerts and dashboards of this room are for Prometheus, for Grafana and for people.

`python -m tenora.observe.files` (or `make reference`) writes the files; a test compares them with the code.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tenora.docs.reference import table
from tenora.observe.alert import AlertRule, RecordingRule
from tenora.observe.dashboards import DASHBOARDS, dashboard_json
from tenora.observe.fleet_alerts import FLEET_ALERTS
from tenora.observe.money_alerts import MONEY_ALERTS
from tenora.observe.recording_rules import RULES

_ROOT: Final = Path(__file__).parents[2]
GROUPS: Final = (("tenora-fleet", FLEET_ALERTS), ("tenora-money", MONEY_ALERTS))
_GENERATED: Final = "# Written by `make reference` from tenora/observe: change the code, not this file.\n"
_HOW_TO: Final = """\
Every process serves its metrics for Prometheus ([reference](../reference/metrics.md)). Let Prometheus scrape all of
them every 15 s, with an `instance` for each process (a gateway's worker *k* serves at `TENORA_METRICS_PORT` + *k*), and
give it two files:

```yaml
rule_files: [deploy/prometheus/rules.yml, deploy/prometheus/alerts.yml]
```

`deploy/prometheus/rules.yml` records percentiles, KV occupancy and error budgets by pool; alerts and dashboards read
them. Grafana imports the dashboards in `deploy/grafana`: the fleet, money, and one for each failure mode. Each alert
has an annotation `runbook_url`, a path in `docs/`: [RUNBOOKS](../RUNBOOKS.md) says what you see, why, and what to do.
The thresholds suit interactive models; copy the file to change them.

The code in `tenora/observe` writes this page, the runbooks, the rules and the dashboards (`make reference`). A real
Prometheus evaluates all of them in `make test-prometheus`. No Grafana has shown the dashboards yet.
"""


def rules_yaml(rules: Iterable[RecordingRule]) -> str:
    """The file of recording rules. A string of JSON is one of YAML."""
    lines = [_GENERATED, "groups:\n", "  - name: tenora-records\n", "    rules:\n"]
    for rule in rules:
        lines += [f"      - record: {rule.record}\n", f"        expr: {json.dumps(rule.expr)}\n"]
        if rule.labels:
            lines.append(f"        labels: {json.dumps(dict(rule.labels))}\n")
    return "".join(lines)


def alerts_yaml(groups: Iterable[tuple[str, Iterable[AlertRule]]]) -> str:
    """The file of alerts, in groups by name."""
    lines = [_GENERATED, "groups:\n"]
    for name, alerts in groups:
        lines += [f"  - name: {name}\n", "    rules:\n"]
        for alert in alerts:
            annotations = {"summary": alert.title, "description": alert.see, "runbook_url": alert.runbook_url}
            lines += [
                f"      - alert: {alert.name}\n",
                f"        expr: {json.dumps(alert.expr)}\n",
                f"        for: {alert.wait}\n",
                f"        labels: {json.dumps({'severity': alert.severity})}\n",
                "        annotations:\n",
                *(f"          {key}: {json.dumps(text)}\n" for key, text in annotations.items()),
            ]
    return "".join(lines)


def _for(alert: AlertRule) -> str:
    return "" if alert.wait == "0s" else f" for {alert.wait}"


def _alerts_page() -> str:
    rows = [
        (f"[{alert.title}](../{alert.runbook_url})", f"`{alert.expr}`{_for(alert)}", alert.severity)
        for _, alerts in GROUPS
        for alert in alerts
    ]
    return table("Set up alerts", _HOW_TO, ("alert", "expression", "severity"), rows)


def _runbooks() -> str:
    def sections() -> Iterator[str]:
        for _, alerts in GROUPS:
            for alert in alerts:
                yield f"## {alert.title}\n\n`{alert.name}`. {alert.see}\n\n"
                yield f"**Why.** {alert.why}\n\n**What to do.** {alert.do}\n\n"

    intro = "What each alert means ([how to set them up](how-to/set-up-alerts.md)), in the order of the page there."
    return f"# Runbooks\n\n{intro}\n\n" + "".join(sections()).rstrip("\n") + "\n"


def files() -> dict[str, str]:
    """The text of each file by its path in the repository."""
    return {
        "deploy/prometheus/rules.yml": rules_yaml(RULES),
        "deploy/prometheus/alerts.yml": alerts_yaml(GROUPS),
        "docs/how-to/set-up-alerts.md": _alerts_page(),
        "docs/RUNBOOKS.md": _runbooks(),
        **{f"deploy/grafana/{each.uid.removeprefix('tenora-')}.json": dashboard_json(each) for each in DASHBOARDS},
    }


def main() -> None:
    """Write every file."""
    for path, text in files().items():
        (_ROOT / path).write_text(text)
        print(path)


if __name__ == "__main__":
    main()
