"""The limits of the billing worker, read from ``TENORA_BILLING_…``, and the fixed limits of billing's queries."""

import socket
from typing import Final

from pydantic import Field

from core.settings import Fragment

USAGE_BUCKETS_MAX: Final = 1_500  # a day by the minute (1,440) and a little more
USAGE_ROWS_MAX: Final = 10_000  # buckets times groups in one answer
USAGE_RECORDS_MAX: Final = 500_000  # records that one page of minutes reads, as far as whole hours allow it
INVOICES_PAGE_MAX: Final = 1_000
CREDIT_LOTS_OPEN_MAX: Final = 1_000  # of one tenant, with credit left: each is looked at for each charge
CREDIT_NANOS_MAX: Final = 1_000_000_000_000_000  # a million dollars in one lot
EVENT_TOKENS_MAX: Final = 1_000_000_000
EVENT_KV_PAGE_MS_MAX: Final = 1_000_000_000_000
EVENT_DURATION_MS_MAX: Final = 1_000_000_000  # eleven days, far above what a gateway lets a request run


class InvoiceSettings(Fragment):
    """When an ended period becomes an invoice. The worker closes by it, and drafts show it."""

    billing_grace_s: int = Field(
        default=3_600,
        ge=60,
        le=604_800,
        description="How long billing waits after the end of a period for late usage before it makes the invoice.",
    )


class BillingSettings(InvoiceSettings):
    """How the worker reads the usage stream and when it gives up on an event."""

    billing_consumer: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=200,
        description="Name of this billing worker in the usage stream's consumer group. Keep it stable across restarts.",
    )
    billing_batch_events_max: int = Field(
        default=500, ge=1, le=5_000, description="Most usage events that the billing worker records in one transaction."
    )
    billing_block_ms: int = Field(
        default=1_000, ge=1, le=10_000, description="How long the billing worker's read waits for new usage events."
    )
    billing_reclaim_idle_ms: int = Field(
        default=5_000,
        ge=100,
        le=600_000,
        description="Pause before billing retries a usage event that was refused or whose worker died.",
    )
    billing_attempts_max: int = Field(
        default=5,
        ge=1,
        le=1_000,
        description="Attempts to record a usage event before billing moves it to the dead letters.",
    )
    billing_unpriced_attempts_max: int = Field(
        default=720,
        ge=1,
        le=100_000,
        description="Attempts for a usage event whose tenant has no price, or that lies in the future (720 attempts "
        "take about an hour).",
    )
    billing_dead_letters_max: int = Field(
        default=100_000,
        ge=1,
        le=10_000_000,
        description="Most usage events in the dead letters. Above it, failing events stay pending.",
    )
    billing_quota_repair_s: int = Field(
        default=15,
        ge=1,
        le=3600,
        description="Delay between a data loss of Redis and the rebuild of quotas, so that gateways settle first.",
    )
    billing_quota_drift_s: int = Field(
        default=30,
        ge=1,
        le=3600,
        description="How often billing compares the quotas of active tenants with the ledger and corrects them.",
    )
    billing_quota_drift_tenants_max: int = Field(
        default=50,
        ge=1,
        le=1_000,
        description="Most tenants in one comparison of quotas with the ledger; each sums a month of usage.",
    )
    billing_clock_skew_s_max: int = Field(
        default=300,
        ge=1,
        le=86_400,
        description="How far a gateway's clock may be ahead of Postgres before billing refuses its usage events.",
    )
    billing_price_age_s_max: int = Field(
        default=86_400,
        ge=60,
        le=2_592_000,
        description="How long after a price was replaced a request admitted under it is still charged by it; as long "
        "as a gateway may serve from an old snapshot.",
    )
    billing_late_days_max: int = Field(
        default=400,
        ge=1,
        le=3_650,
        description="Oldest usage event in days that billing records; older ones go to the dead letters.",
    )
    billing_backoff_ms_max: int = Field(
        default=5_000,
        ge=10,
        le=60_000,
        description="Longest pause between billing's attempts while Redis or Postgres is down.",
    )
    billing_schedule_s: int = Field(
        default=60, ge=1, le=3_600, description="How often billing looks for periods that have ended."
    )
    billing_reconcile_s: int = Field(
        default=3_600, ge=60, le=86_400, description="How often billing compares engines, ledger and invoices."
    )
    billing_reconcile_full_s: int = Field(
        default=86_400,
        ge=60,
        le=2_592_000,
        description="How often a reconciliation also adds up every record again.",
    )
    billing_reconcile_settle_s: int = Field(
        default=300,
        ge=0,
        le=86_400,
        description="How long after its last change an hour is reconciled, so that usage that is on its way is no "
        "difference.",
    )
    billing_reconcile_differences_max: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Most differences that one reconciliation stores; unexplained ones come first.",
    )
    billing_housekeeping_ms: int = Field(
        default=1_000,
        ge=100,
        le=60_000,
        description="How often billing measures the usage stream's lag and trims acknowledged events.",
    )
