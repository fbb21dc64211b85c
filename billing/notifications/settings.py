"""The settings of notifications: those that the control plane and the billing worker share, and those of delivery."""

from typing import Final, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from core.email_addresses import email_problem
from core.settings import DeploymentSettings, Fragment, secret_bytes

DATA_BYTES_MAX: Final = 16_384  # of one notification's data as JSON
PENDING_PER_ENDPOINT_MAX: Final = 10_000  # further deliveries are recorded as failed, and can be replayed
REPLAY_MAX: Final = 1_000  # deliveries that one call queues again
ADDRESS_LENGTH_MAX: Final = 2_048


class NotificationSettings(DeploymentSettings):
    """What the control plane and the billing worker know of notifications. Both must have the same values."""

    notifications_key: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="Secret that encrypts webhooks' signing secrets and makes confirmation codes. Without it, tenants "
        "cannot register endpoints.",
    )
    notifications_key_previous: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="The secret before a rotation. What was encrypted with it stays readable as long as it is set.",
    )
    notifications_email_from: str | None = Field(
        default=None,
        description="Sender of alerts and invitations by e-mail, such as billing@example.com. Without it, no e-mail is "
        "sent, and tenants cannot register e-mail addresses.",
    )
    notifications_allow_loopback: bool = Field(
        default=False,
        description="Allows webhooks on this machine, also over http. Production refuses it.",
    )
    notifications_resolve_ms: int = Field(
        default=3_000, ge=100, le=30_000, description="How long to wait for the DNS answer for a webhook's host."
    )
    notifications_endpoints_max: int = Field(
        default=20, ge=1, le=1_000, description="Notification endpoints that one tenant may have."
    )
    notifications_messages_per_hour_max: int = Field(
        default=10,
        ge=1,
        le=10_000,
        description="Test messages and confirmation codes that one tenant may request per hour, together.",
    )
    notifications_secret_overlap_s: int = Field(
        default=86_400,
        ge=0,
        le=2_592_000,
        description="After a webhook's secret is rotated, messages are also signed with the old one for this long.",
    )

    @field_validator("notifications_email_from")
    @classmethod
    def _mailbox(cls, given: str | None) -> str | None:
        if given and (problem := email_problem(given)) is not None:
            raise ValueError(f"{given!r} is no e-mail address: {problem}. Write one such as billing@example.com")
        return given or None

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if self.notifications_allow_loopback and self.deployment == "production":
            raise ValueError(
                "TENORA_NOTIFICATIONS_ALLOW_LOOPBACK is true, which production refuses: tenants could reach services "
                "of this machine. Remove it, or set TENORA_DEPLOYMENT=one-machine for a trial."
            )
        return self

    @property
    def notification_keys(self) -> tuple[bytes, ...]:
        """The secrets with which something may have been encrypted, the current one first."""
        return secret_bytes(self.notifications_key, self.notifications_key_previous)


class DeliverySettings(Fragment):
    """How the billing worker delivers notifications."""

    notifications_threads: int = Field(
        default=16, ge=1, le=64, description="Notifications that one billing worker delivers at the same time."
    )
    notifications_endpoint_connections_max: int = Field(
        default=1,
        ge=1,
        le=16,
        description="Deliveries to one endpoint at the same time, over all workers. With 1, messages arrive in order "
        "as long as none is refused.",
    )
    notifications_tenant_connections_max: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Deliveries for one tenant at the same time in one worker. Endpoints that hang leave the other "
        "threads to other tenants.",
    )
    notifications_timeout_ms: int = Field(
        default=10_000,
        ge=100,
        le=60_000,
        description="How long one delivery may take, from connecting to the end of the answer.",
    )
    notifications_response_bytes_max: int = Field(
        default=16_384, ge=0, le=1 << 20, description="Bytes of a webhook's answer that are read; the rest is dropped."
    )
    notifications_lease_s: int = Field(
        default=180,
        ge=180,
        le=3_600,
        description="A delivery whose worker died is tried again after this time. No delivery takes as long.",
    )
    notifications_retry_first_ms: int = Field(
        default=5_000,
        ge=10,
        le=600_000,
        description="Longest pause before the second attempt of a delivery; each further pause is twice as long.",
    )
    notifications_retry_longest_ms: int = Field(
        default=3_600_000, ge=10, le=86_400_000, description="Longest pause between two attempts of a delivery."
    )
    notifications_retry_s: int = Field(
        default=259_200,
        ge=1,
        le=2_592_000,
        description="How long a delivery is retried. An endpoint that accepted nothing for this long is disabled.",
    )


class SmtpSettings(Fragment):
    """The mail server of alerts, which the billing worker sends, and of invitations, which the web process sends."""

    smtp_host: str = Field(
        default="localhost", min_length=1, description="Mail server that sends alerts and invitations."
    )
    smtp_port: int = Field(default=587, ge=1, le=65_535, description="Port of the mail server.")
    smtp_security: Literal["starttls", "tls", "none"] = Field(
        default="starttls",
        description="starttls: encrypt after connecting (port 587); tls: from the start (port 465); none: plain text.",
    )
    smtp_user: str = Field(default="", description="User at the mail server; empty sends without a login.")
    smtp_password: SecretStr = Field(default=SecretStr(""), description="Password of that user.")
    smtp_timeout_ms: int = Field(
        default=5_000, ge=100, le=10_000, description="How long to wait for each answer of the mail server."
    )

    @model_validator(mode="after")
    def _no_password_in_plain_text(self) -> Self:
        if self.smtp_user and self.smtp_security == "none":
            raise ValueError(
                "TENORA_SMTP_SECURITY is none, and TENORA_SMTP_USER is set: the password would be sent in plain text. "
                "Use starttls or tls, or a server that needs no login."
            )
        return self
