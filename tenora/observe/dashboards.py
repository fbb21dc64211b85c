"""Grafana's dashboards: the fleet, money, and one for each failure mode. A panel is a title, a unit and queries.

What Grafana adds to a panel is in ``dashboard_json``, for the schema of Grafana 9 and later.
"""

import json
from dataclasses import dataclass
from typing import Final

from tenora.observe.alert import AlertRule
from tenora.observe.fleet_alerts import FAILURE_MODES

_COLUMNS: Final = 2
_WIDTH, _HEIGHT = 24 // _COLUMNS, 8
_SCHEMA_VERSION: Final = 38
_P50, _P95 = "pool:tenora_gateway_phase_seconds:p50_5m", "pool:tenora_gateway_phase_seconds:p95_5m"


@dataclass(frozen=True)
class Panel:
    """One graph. ``queries`` are expressions by their legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Dashboard:
    """One page of panels; ``alert`` is what it explains."""

    uid: str
    title: str
    panels: tuple[Panel, ...]
    alert: AlertRule | None = None


def _phase(title: str, phase: str) -> Panel:
    queries = (
        ("{{pool}} median", f'{_P50}{{phase="{phase}"}}'),
        ("{{pool}} p95", f'{_P95}{{phase="{phase}"}}'),
    )
    return Panel(title, "s", queries)


def _one(title: str, unit: str, expr: str, legend: str = "{{pool}}") -> Panel:
    return Panel(title, unit, ((legend, expr),))


_WAIT: Final = _phase("Wait until admitted", "wait")
_LOAD: Final = _phase("Load of the adapter", "load")
_PREFILL: Final = _phase("Prefill, with the engine's queue", "prefill")
_FIRST_TOKEN: Final = _phase("Time to the first token", "ttft")
_ITL: Final = _phase("ITL p95 of a stream", "itl")
_DECODE: Final = _phase("Generation after the first token", "decode")
_KV_USED: Final = _one("KV pages in use", "percentunit", "pool:tenora_kv_used:ratio")
_ENGINE_QUEUE: Final = _one("Waiting in engines", "short", "pool:tenora_replica_waiting_requests:sum")
_PREEMPTIONS: Final = _one("Preemptions", "ops", "pool:tenora_replica_preemptions:rate5m")
_TOKENS: Final = _one("Tokens of engines", "ops", "pool:tenora_replica_tokens:rate1m", "{{pool}} {{kind}}")
_PREFIX_HITS: Final = _one(
    "Prefix hits, of prompt tokens",
    "percentunit",
    'sum(rate(tenora_gateway_tokens_total{kind="cached"}[5m]))'
    ' / sum(rate(tenora_gateway_tokens_total{kind="input"}[5m]))',
    "hits",
)
_QUEUE: Final = Panel(
    "Requests at gateways",
    "short",
    (
        ("running", "sum(tenora_gateway_running_requests)"),
        ("waiting", "sum(tenora_gateway_waiting_requests)"),
    ),
)
_REPLICAS: Final = Panel(
    "Replicas",
    "short",
    (
        ("{{pool}} wanted", "max by (pool) (tenora_fleet_wanted_replicas)"),
        ("{{pool}} {{state}}", 'max by (pool, state) (tenora_fleet_replicas{state=~"starting|ready|failed"})'),
    ),
)
_TIERS: Final = _one(
    "Adapters by the tier that had them",
    "ops",
    'sum by (adapter_tier) (rate(tenora_gateway_phase_seconds_count{phase="load"}[5m]))',
    "{{adapter_tier}}",
)
_STALLS: Final = _one(
    "Time that loads stopped all streams",
    "percentunit",
    "sum by (to) (rate(tenora_replica_stall_seconds_sum[5m]))",
    "into {{to}}",
)
_REFUSALS: Final = _one("Refusals", "ops", "sum by (code) (rate(tenora_gateway_refusals_total[5m]))", "{{code}}")
_QUEUE_REFUSALS: Final = _one(
    "Refusals of the queue", "ops", "sum by (reason) (rate(tenora_gateway_queue_refusals_total[5m]))", "{{reason}}"
)
_OUTCOMES: Final = _one("Outcomes", "ops", "sum by (outcome) (rate(tenora_gateway_outcomes_total[5m]))", "{{outcome}}")
_ROUTES: Final = _one(
    "Requests of groups of models",
    "ops",
    "sum by (rule, reason) (rate(tenora_gateway_routed_requests_total[5m]))",
    "{{rule}} {{reason}}",
)
_ESCALATIONS: Final = _one(
    "First answers of cascades that were replaced",
    "percentunit",
    "sum by (cause) (rate(tenora_gateway_escalations_total[5m]))"
    ' / on () group_left () sum(rate(tenora_gateway_routed_requests_total{reason="first"}[5m]))',
    "{{cause}}",
)
_BURN: Final = _one(
    "Error budget burn, 1 h (1 spends it exactly)", "short", "sli:tenora_error_budget_burn:rate1h", "{{sli}}"
)


def _money(title: str, expr: str, unit: str = "short") -> Panel:
    return _one(title, unit, expr, title.lower())


_MONEY: Final = Dashboard(
    "tenora-money",
    "Tenora: money",
    (
        Panel(
            "Usage recorded",
            "ops",
            (
                ("events", "sum(rate(tenora_billing_records_total[5m]))"),
                ("tokens", "sum(rate(tenora_billing_tokens_total[5m]))"),
            ),
        ),
        Panel(
            "Usage that waits",
            "short",
            (
                ("unread", "max(tenora_billing_unread_events)"),
                ("pending", "max(tenora_billing_pending_events)"),
                ("dead letters", "max(tenora_billing_dead_letters_held)"),
            ),
        ),
        _money(
            "Time of a batch, p95",
            "histogram_quantile(0.95, sum by (le) (rate(tenora_billing_batch_seconds_bucket[5m])))",
            "s",
        ),
        _money("Differences of the reconciliation", "max(tenora_billing_reconciliation_differences)"),
        _money("Age of the reconciliation", "time() - max(tenora_billing_reconciled_timestamp_seconds)", "s"),
        _money("Ledger drift in nanodollars", "max(tenora_billing_ledger_drift_nanos)"),
        _money("Payments that wait", "max(tenora_billing_payment_oldest_waiting_seconds)", "s"),
        _money("Notifications that wait", "max(tenora_billing_notification_oldest_due_seconds)", "s"),
    ),
)
_FLEET: Final = Dashboard(
    "tenora-fleet",
    "Tenora: fleet",
    (
        _BURN, _FIRST_TOKEN, _ITL, _phase("Whole requests", "whole"), _QUEUE, _REFUSALS, _OUTCOMES, _REPLICAS, _KV_USED,
        _TOKENS, _PREFIX_HITS, _TIERS, _ROUTES, _ESCALATIONS,
    ),
)  # fmt: skip
_PANELS: Final = {
    "LongGenerations": (_DECODE, _QUEUE, _KV_USED, _OUTCOMES, _ITL, _WAIT),
    "KvExhaustion": (_KV_USED, _QUEUE, _PREEMPTIONS, _ENGINE_QUEUE, _WAIT, _REPLICAS),
    "PrefillStall": (_PREFILL, _ITL, _TOKENS, _PREFIX_HITS, _ENGINE_QUEUE, _STALLS),
    "QueueRunaway": (_QUEUE, _QUEUE_REFUSALS, _WAIT, _TOKENS, _REPLICAS, _REFUSALS),
    "ColdStart": (_REPLICAS, _WAIT, _LOAD, _TIERS, _STALLS, _REFUSALS),
}
DASHBOARDS: Final = (
    _FLEET,
    _MONEY,
    *(
        Dashboard(
            f"tenora-{alert.title.lower().replace(' ', '-')}",
            f"Tenora: {alert.title}",
            _PANELS[alert.name],
            alert,
        )
        for alert in FAILURE_MODES
    ),
)


def dashboard_json(dashboard: Dashboard) -> str:
    """The dashboard as Grafana imports it."""
    datasource = {"type": "prometheus", "uid": "${datasource}"}
    panels = [
        {
            "id": number + 1,
            "type": "timeseries",
            "title": panel.title,
            "datasource": datasource,
            "gridPos": {
                "x": number % _COLUMNS * _WIDTH, "y": number // _COLUMNS * _HEIGHT, "w": _WIDTH, "h": _HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + index), "datasource": datasource, "expr": expr, "legendFormat": legend}
                for index, (legend, expr) in enumerate(panel.queries)
            ],
        }
        for number, panel in enumerate(dashboard.panels)
    ]  # fmt: skip
    alert = dashboard.alert
    text = "" if alert is None else f"{alert.see} {alert.why} Runbook: docs/{alert.runbook_url}"
    page = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": text,
        "tags": ["tenora"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]
        },
        "panels": panels,
    }
    return json.dumps(page, indent=2, ensure_ascii=False) + "\n"
