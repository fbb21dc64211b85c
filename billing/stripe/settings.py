"""The settings of the connection to Stripe or to the Stripe simulator, read from ``TENORA_STRIPE_…``.

The connection itself is in ``billing.stripe.client``.
"""

import re
from typing import Final, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from core.settings import Fragment

_KEY: Final = re.compile(r"(sk|rk)_(test|live)_[A-Za-z0-9_]{8,255}")
_WEBHOOK_SECRET: Final = re.compile(r"whsec_[A-Za-z0-9_+/=]{8,255}")
_ORIGIN: Final = re.compile(r"https?://([a-z0-9.\-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")


class StripeSettings(Fragment):
    """Where Stripe is and how to prove who calls. Fails closed: a live key never goes to another address."""

    stripe_api_key: SecretStr | None = Field(
        default=None,
        description="Secret key of Stripe: sk_test_… or sk_live_…. Without it nothing is sent to Stripe.",
    )
    stripe_mode: Literal["test", "live"] = Field(
        default="test",
        description="Stripe's mode, for the web process, which has no key: it refuses webhooks of the other mode. "
        "Where there is a key, the key decides.",
    )
    stripe_api_base: str | None = Field(
        default=None,
        description="Address of the Stripe simulator, such as http://127.0.0.1:8090. Empty for Stripe itself.",
    )
    stripe_webhook_secret: SecretStr | None = Field(
        default=None, description="Signing secret (whsec_…) of the webhook endpoint that Stripe posts events to."
    )
    stripe_webhook_secret_previous: SecretStr | None = Field(
        default=None,
        description="The signing secret before a rotation. Events signed with it are accepted as long as it is set.",
    )
    stripe_webhook_age_s_max: int = Field(
        default=300, ge=10, le=3600, description="Oldest signature of a Stripe webhook that billing accepts."
    )
    stripe_connect_timeout_s: int = Field(
        default=5, ge=1, le=60, description="Longest wait for a connection to Stripe."
    )
    stripe_read_timeout_s: int = Field(
        default=30, ge=1, le=120, description="Longest wait for Stripe's answer; after it the outcome is unknown."
    )
    stripe_lookup_objects_max: int = Field(
        default=1_000,
        ge=10,
        le=10_000,
        description="Most objects that a search for a lost answer reads at Stripe. Above it the search fails.",
    )

    @field_validator("stripe_api_key")
    @classmethod
    def _is_secret_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and not _KEY.fullmatch(key.get_secret_value()):
            raise PydanticCustomError(
                "stripe_key_malformed",
                "TENORA_STRIPE_API_KEY is no secret key of Stripe. Set one that begins with sk_test_, sk_live_, "
                "rk_test_ or rk_live_; a publishable key (pk_…) does not work.",
            )
        return key

    @field_validator("stripe_api_base")
    @classmethod
    def _has_no_live_key(cls, base: str | None, info: ValidationInfo) -> str | None:
        if base is None:
            return None
        if not _ORIGIN.fullmatch(base):
            raise PydanticCustomError(
                "stripe_base_malformed",
                "TENORA_STRIPE_API_BASE must be scheme://host[:port] in lower case, without a path or a final slash.",
            )
        key = info.data.get("stripe_api_key")
        if key is not None and "_live_" in key.get_secret_value()[:8]:
            raise PydanticCustomError(
                "live_key_with_simulator",
                "TENORA_STRIPE_API_BASE names a simulator, but TENORA_STRIPE_API_KEY is a live key. Unset "
                "TENORA_STRIPE_API_BASE to use Stripe, or set a key that begins with sk_test_.",
            )
        if key is None and info.data.get("stripe_mode") == "live":
            raise PydanticCustomError(
                "live_mode_with_simulator",
                "TENORA_STRIPE_API_BASE names a simulator, but TENORA_STRIPE_MODE is live. Unset "
                "TENORA_STRIPE_API_BASE to use Stripe, or set the mode to test.",
            )
        return base

    @field_validator("stripe_webhook_secret", "stripe_webhook_secret_previous")
    @classmethod
    def _is_webhook_secret(cls, secret: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if secret is not None and not _WEBHOOK_SECRET.fullmatch(secret.get_secret_value()):
            raise PydanticCustomError(
                "stripe_webhook_secret_malformed",
                "TENORA_{name} must begin with whsec_: copy it from the webhook endpoint's page at Stripe.",
                {"name": (info.field_name or "").upper()},
            )
        return secret

    @property
    def webhook_secrets(self) -> tuple[str, ...]:
        """The secrets that a webhook may be signed with, the current one first."""
        both = (self.stripe_webhook_secret, self.stripe_webhook_secret_previous)
        return tuple(each.get_secret_value() for each in both if each is not None)

    @property
    def set_up(self) -> bool:
        """Whether payments go to Stripe: the billing worker has the key, the web process a secret of webhooks."""
        return self.stripe_api_key is not None or bool(self.webhook_secrets)

    @property
    def mode(self) -> Literal["test", "live"]:
        """Stripe's mode: of the key, or as set where there is none."""
        if self.stripe_api_key is None:
            return self.stripe_mode
        return "live" if "_live_" in self.stripe_api_key.get_secret_value()[:8] else "test"

    @property
    def call_s(self) -> int:
        """The longest that one call waits: for a connection, and for its answer."""
        return self.stripe_connect_timeout_s + self.stripe_read_timeout_s

    @property
    def livemode(self) -> bool:
        """Whether real money is moved."""
        return self.mode == "live"
