"""Alerts on money: what is not recorded, not billed, not paid, or differs."""

from typing import Final

from tenora.observe.alert import AlertRule, rises

MONEY_ALERTS: Final = (
    AlertRule(
        name="UsageNotRecorded",
        title="Usage is not recorded",
        expr="tenora_billing_unread_events > 1000",
        wait="60s",
        severity="page",
        see="The usage stream grows. Nothing is lost; quotas go on.",
        why="Billing's worker is down or stuck.",
        do="Start it again, and see its log.",
    ),
    AlertRule(
        name="EventsSetAside",
        title="Events were set aside",
        expr=rises("tenora_billing_dead_letters_total", "5m"),
        see="Usage is among the dead letters and is not billed.",
        why="An event could not be recorded; the label `code` says why.",
        do="Repair the cause, then run `python -m billing redrive`.",
    ),
    AlertRule(
        name="EventsLost",
        title="Events were lost",
        expr="increase(tenora_billing_lost_total[5m]) > 0",
        severity="page",
        see="Entries left the usage stream before billing recorded them.",
        why="Redis lost data or evicts keys.",
        do="Reconciliation shows which requests are missing. See that Redis has `maxmemory-policy noeviction`.",
    ),
    AlertRule(
        name="StalePrices",
        title="Usage names stale prices",
        expr="increase(tenora_billing_stale_prices_total[5m]) > 0",
        see="Requests were charged by other prices than they were admitted by: by those in force.",
        why="A gateway admitted requests by prices that had not been in force for a day, or not yet.",
        do="Look for a gateway that gets no configuration, or whose clock is wrong.",
    ),
    AlertRule(
        name="QuotasDiffered",
        title="Quotas differed",
        expr="increase(tenora_billing_quota_drifts_total[1h]) > 0"
        " or increase(tenora_billing_quotas_rebuilt_total[1h]) > 0",
        see="Counts of quotas have been corrected; the log names the tenants.",
        why="Gateways had counted something else than the ledger.",
        do="Look for a Redis that lost data.",
    ),
    AlertRule(
        name="TenantNotBilled",
        title="A tenant is not billed",
        expr=rises("tenora_billing_tenant_failures_total", "5m"),
        see="A period is not closed or adjusted. It is tried again, and no other tenant waits.",
        why="Something about this tenant's period fails; the log names the tenant.",
        do="Correct what the log says.",
    ),
    AlertRule(
        name="PaymentsNeedAPerson",
        title="Payments need a person",
        expr=rises("tenora_billing_payment_alarms_total", "5m")
        + " or tenora_billing_payment_queues_stopped > 0 or increase(tenora_billing_surplus_payments_total[5m]) > 0",
        see="A tenant's queue to Stripe has stopped, or money arrived that was not due.",
        why="Stripe refused an operation, or somebody acted in Stripe's dashboard.",
        do="`GET /api/v1/admin/payments/alarms` says which; [Connect Stripe](how-to/connect-stripe.md) says what to "
        "do.",
    ),
    AlertRule(
        name="PaymentsWait",
        title="Payments wait",
        expr="tenora_billing_payment_oldest_waiting_seconds > 600",
        see="Invoices and top-ups reach Stripe late.",
        why="Stripe does not answer, or the billing worker is down.",
        do="See the worker's log and Stripe's status page. Each operation is tried again, and none is done twice.",
    ),
    AlertRule(
        name="TenantsNotInformed",
        title="Tenants are not informed",
        expr="tenora_billing_notification_oldest_due_seconds > 60"
        " or increase(tenora_billing_notification_late_results_total[5m]) > 0",
        wait="5m",
        see="Notifications wait; they are not lost.",
        why="The billing worker is down, or more endpoints hang than `TENORA_NOTIFICATIONS_THREADS`.",
        do="See the worker's log, and raise the number of threads.",
    ),
    AlertRule(
        name="NoEmailLeaves",
        title="No e-mail leaves",
        expr='increase(tenora_billing_notification_deliveries_total{kind="email",result="retried"}[15m]) > 20',
        see="E-mails are retried, for three days.",
        why="The mail server refuses them or does not answer.",
        do="See the worker's log for `mail server failed`.",
    ),
    AlertRule(
        name="CountsDiffer",
        title="Counts differ",
        expr="tenora_billing_reconciliation_differences > 0"
        " or increase(tenora_billing_engine_reports_refused_total[1h]) > 0",
        see="Engines, ledger and invoices differ.",
        why="Usage is missing or double, or an engine's report could not be read.",
        do="[Reconcile](how-to/reconcile.md) says how to read the difference.",
    ),
    AlertRule(
        name="TotalsDiffer",
        title="Totals differ",
        expr="tenora_billing_ledger_drift_nanos > 0",
        severity="page",
        see="Transfers differ from sums of usage or from invoices.",
        why="The ledger was changed by something other than billing, or billing has a defect.",
        do="[Reconcile](how-to/reconcile.md) with `--full`.",
    ),
    AlertRule(
        name="NothingReconciled",
        title="Nothing is reconciled",
        expr="time() - tenora_billing_reconciled_timestamp_seconds > 7200",
        see="The last reconciliation is more than two hours old.",
        why="The billing worker is down, or its reconciliation fails.",
        do="See its log.",
    ),
    AlertRule(
        name="CostsMissing",
        title="Costs are missing",
        expr="increase(tenora_billing_cost_windows_late_total[1h]) > 0 or "
        + rises('tenora_billing_cost_windows_total{result="refused"}', "1h"),
        see="The cost of some of a replica's time is in no row.",
        why="Windows of a replica's time came too late or were impossible.",
        do="Look for clocks that are wrong and for agents without Redis.",
    ),
    AlertRule(
        name="CostsWait",
        title="Costs wait",
        expr="increase(tenora_billing_cost_hours_refused_total[1h]) > 0"
        " or increase(tenora_billing_cost_windows_unshared_total[1h]) > 0",
        see="Hours of replicas are not shared out; after 90 days its windows are deleted.",
        why="A replica has no rate of its pool or of its base model and rank class.",
        do="Add one with `POST /api/v1/admin/costs/rates`.",
    ),
)
