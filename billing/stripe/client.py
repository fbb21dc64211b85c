"""The connection to Stripe: the only module that imports its SDK. A method that changes something is one call, with an
idempotency key of billing's and without the SDK's retries; one that lists may be several. Order, retries and what
follows from an answer belong to the callers.

Fails closed: each error of the SDK becomes one of ``billing.stripe.errors``; an unknown outcome is never a success.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, TypeVar

import stripe
from stripe import params as given

from billing.stripe.errors import failure_of
from billing.stripe.lookups import at_most, created_between, in_parts, with_our_id
from billing.stripe.objects import (
    OUR_ID,
    StripeCustomer,
    StripeDispute,
    StripeEvent,
    StripePage,
    StripePayment,
    StripeRefund,
    WentBack,
    reference,
)
from billing.stripe.settings import StripeSettings
from core.errors import InvalidRequest

_PAGE: Final = 100
API_VERSION: Final = str(stripe.api_version)  # of the SDK's calls
_Given = TypeVar("_Given")
_Value = TypeVar("_Value")
stripe.enable_telemetry = False  # the SDK would write a file in the home folder and report latencies


class StripeAccount:
    """The platform's account at Stripe. Thread-safe. ``key`` is always an idempotency key. It is committed before
    a call that must take effect once (``billing.payments.calls``). Where a repetition changes nothing, each call has
    another: ``set_default_card``, ``close_page`` and ``portal_url``.
    """

    def __init__(self, settings: StripeSettings) -> None:
        if settings.stripe_api_key is None:
            raise ValueError("TENORA_STRIPE_API_KEY is not set: there is no Stripe account to call")
        self._settings = settings
        http = stripe.RequestsClient(timeout=(settings.stripe_connect_timeout_s, settings.stripe_read_timeout_s))
        base = settings.stripe_api_base
        self._client = stripe.StripeClient(
            settings.stripe_api_key.get_secret_value(),
            base_addresses={"api": base, "files": base, "connect": base, "meter_events": base} if base else None,
            max_network_retries=0,
            http_client=http,
        )
        self._api = self._client.v1
        self._most = settings.stripe_lookup_objects_max

    @property
    def livemode(self) -> bool:
        """Whether the account moves real money."""
        return self._settings.livemode

    @property
    def call_s(self) -> int:
        """The longest that one call waits."""
        return self._settings.call_s

    # Customers and their cards.

    def create_customer(
        self, *, our_id: str, name: str, email: str | None, key: str, test_clock: str | None = None
    ) -> StripeCustomer:
        with _mapped_errors():
            params: given.CustomerCreateParams = {"name": name, "metadata": {OUR_ID: our_id}}
            if email is not None:
                params["email"] = email
            if test_clock is not None:
                params["test_clock"] = test_clock
            return StripeCustomer.read(self._api.customers.create(params, {"idempotency_key": key}))

    def customer(self, customer_id: str) -> StripeCustomer:
        with _mapped_errors():
            return StripeCustomer.read(self._api.customers.retrieve(customer_id))

    def find_customer(
        self, *, our_id: str, since: datetime, until: datetime, test_clock: str | None = None
    ) -> StripeCustomer | None:
        params: given.CustomerListParams = {"created": created_between(since, until), "limit": _PAGE}
        if test_clock is not None:
            params["test_clock"] = test_clock
        with _mapped_errors():
            page = self._api.customers.list(params)
            return self._found(page.auto_paging_iter(), our_id, StripeCustomer.read)

    def set_default_card(self, customer_id: str, card: str, *, key: str) -> None:
        params: given.CustomerUpdateParams = {"invoice_settings": {"default_payment_method": card}}
        with _mapped_errors():
            self._api.customers.update(customer_id, params, {"idempotency_key": key})

    def newest_card(self, customer_id: str) -> str | None:
        """The card that the customer saved last."""
        with _mapped_errors():
            page = self._api.customers.payment_methods.list(customer_id, {"type": "card", "limit": 1})
            return next((each.id for each in page.data), None)

    def card_of_setup(self, setup_intent: str) -> str | None:
        """The card that a completed set-up saved."""
        with _mapped_errors():
            return reference(self._api.setup_intents.retrieve(setup_intent).payment_method)

    def clock_time(self, test_clock: str) -> datetime:
        """The time on a test clock."""
        with _mapped_errors():
            return datetime.fromtimestamp(self._api.test_helpers.test_clocks.retrieve(test_clock).frozen_time, UTC)

    # Pages on which the owner acts.

    def open_setup_page(
        self, customer_id: str, *, our_id: str, currency: str, success_url: str, cancel_url: str, key: str
    ) -> StripePage:
        """A Checkout page that saves a card for later payments."""
        params: given.checkout.SessionCreateParams = {
            "mode": "setup", "customer": customer_id, "currency": currency, "allowed_payment_method_types": ["card"],
            "success_url": success_url, "cancel_url": cancel_url,
            "metadata": {OUR_ID: our_id}, "setup_intent_data": {"metadata": {OUR_ID: our_id}},
        }  # fmt: skip
        with _mapped_errors():
            return StripePage.read(self._api.checkout.sessions.create(params, {"idempotency_key": key}))

    def open_payment_page(
        self,
        customer_id: str,
        *,
        our_id: str,
        amount_cents: int,
        currency: str,
        description: str,
        urls: tuple[str, str],
        key: str,
    ) -> StripePage:
        """A Checkout page for one payment, such as a top-up; ``urls`` lead back after success and after cancelling."""
        price: given.checkout.SessionCreateParamsLineItemPriceData = {
            "currency": currency, "unit_amount": amount_cents, "product_data": {"name": description},
        }  # fmt: skip
        params: given.checkout.SessionCreateParams = {
            "mode": "payment", "customer": customer_id, "allowed_payment_method_types": ["card"],
            "line_items": [{"quantity": 1, "price_data": price}], "success_url": urls[0], "cancel_url": urls[1],
            "metadata": {OUR_ID: our_id},
            "payment_intent_data": {"metadata": {OUR_ID: our_id}, "description": description},
        }  # fmt: skip
        with _mapped_errors():
            return StripePage.read(self._api.checkout.sessions.create(params, {"idempotency_key": key}))

    def page(self, session_id: str) -> StripePage:
        with _mapped_errors():
            return StripePage.read(self._api.checkout.sessions.retrieve(session_id))

    def close_page(self, session_id: str, *, key: str) -> StripePage:
        """Expire an open page, so that it takes no payment. Raises StripeRefused for one that is not open."""
        with _mapped_errors():
            return StripePage.read(self._api.checkout.sessions.expire(session_id, {}, {"idempotency_key": key}))

    def find_page(self, *, our_id: str, customer_id: str, since: datetime, until: datetime) -> StripePage | None:
        with _mapped_errors():
            listed = self._api.checkout.sessions.list(
                {"customer": customer_id, "created": created_between(since, until), "limit": _PAGE}
            )
            return self._found(listed.auto_paging_iter(), our_id, StripePage.read)

    def portal_url(self, customer_id: str, *, return_url: str, key: str) -> str:
        """A page on which the owner manages cards; the URL works once and for minutes."""
        params: given.billing_portal.SessionCreateParams = {"customer": customer_id, "return_url": return_url}
        with _mapped_errors():
            return self._api.billing_portal.sessions.create(params, {"idempotency_key": key}).url

    # Payments without the owner.

    def charge_saved_card(
        self,
        customer_id: str,
        payment_method: str,
        *,
        our_id: str,
        amount_cents: int,
        currency: str,
        description: str,
        key: str,
    ) -> StripePayment:
        """Charge a saved card now. Raises StripeCardDeclined, also if the owner would have to confirm it."""
        params: given.PaymentIntentCreateParams = {
            "amount": amount_cents, "currency": currency, "customer": customer_id, "payment_method": payment_method,
            "allowed_payment_method_types": ["card"], "off_session": True, "confirm": True,
            "description": description, "metadata": {OUR_ID: our_id},
        }  # fmt: skip
        with _mapped_errors():
            return StripePayment.read(self._api.payment_intents.create(params, {"idempotency_key": key}))

    def payment(self, payment_intent: str) -> StripePayment:
        with _mapped_errors():
            return StripePayment.read(self._api.payment_intents.retrieve(payment_intent))

    def find_payment(self, *, our_id: str, customer_id: str, since: datetime, until: datetime) -> StripePayment | None:
        with _mapped_errors():
            page = self._api.payment_intents.list(
                {"customer": customer_id, "created": created_between(since, until), "limit": _PAGE}
            )
            return self._found(page.auto_paging_iter(), our_id, StripePayment.read)

    # Money back.

    def refund(self, payment_intent: str, *, our_id: str, amount_cents: int, key: str) -> StripeRefund:
        with _mapped_errors():
            params: given.RefundCreateParams = {"payment_intent": payment_intent, "amount": amount_cents}
            params |= {"reason": "requested_by_customer", "metadata": {OUR_ID: our_id}}
            return StripeRefund.read(self._api.refunds.create(params, {"idempotency_key": key}))

    def refund_of_id(self, refund_id: str) -> StripeRefund:
        with _mapped_errors():
            return StripeRefund.read(self._api.refunds.retrieve(refund_id))

    def dispute(self, dispute_id: str) -> StripeDispute:
        with _mapped_errors():
            return StripeDispute.read(self._api.disputes.retrieve(dispute_id))

    def went_back(self, payment_intent: str) -> WentBack:
        """All refunds of a payment, the oldest first, and its disputes."""
        with _mapped_errors():
            refunds = self._api.refunds.list({"payment_intent": payment_intent, "limit": _PAGE}).auto_paging_iter()
            disputes = self._api.disputes.list({"payment_intent": payment_intent, "limit": _PAGE}).auto_paging_iter()
            return WentBack.read(at_most(refunds, self._most), at_most(disputes, self._most))

    # Events.

    def events_since(self, since: datetime, until: datetime, *, types: Sequence[str]) -> list[StripeEvent]:
        """Events of the last 30 days at most, the oldest first. Repeats what webhooks may already have brought."""
        created: given.EventListParamsCreated = {"gte": int(since.timestamp()), "lte": int(until.timestamp())}
        found: list[StripeEvent] = []
        with _mapped_errors():
            for some in in_parts(types):
                page = self._api.events.list({"created": created, "types": some, "limit": _PAGE})
                found += [StripeEvent.read(each) for each in at_most(page.auto_paging_iter(), self._most)][::-1]
        return sorted(found, key=lambda event: event.created_at)

    def _found(self, listed: Iterable[_Given], our_id: str, read: Callable[[_Given], _Value]) -> _Value | None:
        return with_our_id(listed, our_id, read, self._most)


def event_from_webhook(settings: StripeSettings, body: bytes, signature: str | None) -> StripeEvent:
    """The event of a webhook whose signature over the raw body is right. Needs no key. Raises InvalidRequest."""
    if not settings.webhook_secrets:
        raise InvalidRequest(
            "no signing secret for webhooks is known; set TENORA_STRIPE_WEBHOOK_SECRET",
            code="stripe_webhook_secret_missing",
        )
    reasons: list[str] = []
    for secret in settings.webhook_secrets:
        try:
            event = stripe.Webhook.construct_event(body, signature, secret, settings.stripe_webhook_age_s_max)
            livemode, read = event.livemode, StripeEvent.read(event)
        except stripe.SignatureVerificationError as error:
            reasons.append(str(error.user_message))
            continue
        except (ValueError, AttributeError, TypeError) as error:  # the signature is right, the content is not
            raise InvalidRequest(f"the body is no event: {error}", code="stripe_event_malformed") from error
        if livemode != settings.livemode:
            raise InvalidRequest(
                f"{read.id} has livemode {livemode}; this installation is in Stripe's {settings.mode} mode",
                code="stripe_mode_mismatch",
                param="livemode",
            )
        return read
    why = next((reason for reason in reasons if "tolerance" in reason), reasons[0])  # too old: the secret is right
    raise InvalidRequest(
        f"Stripe-Signature: {why}. Check that TENORA_STRIPE_WEBHOOK_SECRET is this endpoint's secret.",
        code="stripe_signature_invalid",
        param="Stripe-Signature",
    )


@contextmanager
def _mapped_errors() -> Iterator[None]:
    try:
        yield
    except stripe.StripeError as error:
        body = error.json_body
        details = body.get("error") if isinstance(body, dict) else None
        raise failure_of(
            str(error.user_message or error),
            status=error.http_status,
            error=details if isinstance(details, dict) else {},
            headers={name.lower(): value for name, value in (error.headers or {}).items()},
        ) from error
