"""The settings of payments: the queue of calls to Stripe, webhooks, and dunning."""

from datetime import timedelta
from typing import Final

from pydantic import Field

from core.settings import Fragment, PublicUrlSettings

PENDING_PER_TENANT_MAX: Final = 100  # above it a tenant's further pages and top-ups are refused
DESCRIPTION_LENGTH_MAX: Final = 300  # of one line at Stripe
REMINDER_DAYS: Final = (-3, 1, 7, 14)  # before and after the due date of an invoice that is paid by transfer


class WebhookSettings(Fragment):
    """What the route for Stripe's webhooks accepts."""

    payments_webhook_bytes_max: int = Field(
        default=1 << 20, ge=1_024, le=16 << 20, description="Largest webhook of Stripe that the control plane accepts."
    )
    payments_page_wait_ms: int = Field(
        default=5_000,
        ge=0,
        le=20_000,
        description="How long a request for a page of Stripe's waits for its address before it answers 202.",
    )


class PaymentSettings(PublicUrlSettings):
    """How the billing worker calls Stripe and when it asks for help."""

    payments_threads: int = Field(
        default=4, ge=1, le=32, description="Tenants whose calls to Stripe one billing worker makes at the same time."
    )
    payments_poll_ms: int = Field(
        default=200, ge=10, le=60_000, description="How often the billing worker looks for calls to Stripe to make."
    )
    payments_lease_s: int = Field(
        default=180,
        ge=2,
        le=3_600,
        description="Calls to Stripe whose worker died are continued after this time. No single call takes as long.",
    )
    payments_retry_first_ms: int = Field(
        default=1_000, ge=10, le=60_000, description="Pause after the first call that Stripe did not answer usably."
    )
    payments_retry_longest_ms: int = Field(
        default=300_000, ge=10, le=3_600_000, description="Longest pause between two attempts of a call to Stripe."
    )
    payments_silence_alarm_s: int = Field(
        default=3_600,
        ge=1,
        le=86_400,
        description="An alarm is raised when Stripe has given a call no usable answer for this long.",
    )
    payments_collect_age_s_max: int = Field(
        default=604_800,
        ge=3_600,
        le=31_536_000,
        description="Oldest invoice that is collected without an admin. Older ones waited, perhaps from a time without "
        "Stripe; their queue stops and asks.",
    )
    payments_key_age_s_max: int = Field(
        default=72_000,
        ge=60,
        le=82_800,
        description="Oldest idempotency key that is sent again without looking for its object. Stripe forgets keys "
        "after 86,400 s.",
    )
    payments_keys_max: int = Field(
        default=3, ge=1, le=10, description="Idempotency keys of one call. After the last the tenant's queue stops."
    )
    payments_events_batch_max: int = Field(
        default=100, ge=1, le=1_000, description="Stripe events that one round of the billing worker handles."
    )
    payments_event_attempts_max: int = Field(
        default=20, ge=1, le=100, description="Attempts to handle one Stripe event before it waits for an admin."
    )
    payments_catch_up_s: int = Field(
        default=300,
        ge=1,
        le=86_400,
        description="How often events are listed from Stripe, which repairs webhooks that were lost.",
    )
    payments_dunning_days: tuple[int, ...] = Field(
        default=(0, 3, 5, 7),
        min_length=1,
        max_length=10,
        description="Days after the first attempt on which an invoice's payment is attempted, as a JSON list.",
    )
    payments_suspend_days: int = Field(
        default=14, ge=1, le=90, description="Days after the first attempt on which an unpaid tenant is suspended."
    )

    @property
    def key_age_max(self) -> timedelta:
        """How long a key is trusted to be known at Stripe."""
        return timedelta(seconds=self.payments_key_age_s_max)
