"""What this installation allows notification endpoints to be. Hosts are looked up before a transaction begins."""

from billing.notifications.addresses import HostLookup, parse_webhook
from billing.notifications.settings import NotificationSettings
from billing.notifications.signing_secrets import SecretBox
from core.errors import Unprocessable


class NotificationRules:
    """What this installation allows endpoints to be. One for each web process."""

    def __init__(self, settings: NotificationSettings, hosts: HostLookup | None = None) -> None:
        self.settings = settings
        self.box = SecretBox(settings.notification_keys)
        self._hosts = hosts or HostLookup(
            allow_loopback=settings.notifications_allow_loopback, timeout_ms=settings.notifications_resolve_ms
        )

    def check(self, kind: str, address: str, *, tenant_id: str) -> None:
        """Look a webhook's host up, outside of any transaction. Raises Unprocessable where this installation cannot
        deliver, and what ``addresses`` raises for an address that is not allowed.
        """
        if not self.box.usable:
            raise Unprocessable(
                "This installation sends no notifications. Its operator must set TENORA_NOTIFICATIONS_KEY.",
                code="notifications_not_set_up",
            )
        if kind == "webhook":
            allow_loopback = self.settings.notifications_allow_loopback
            self._hosts.addresses(parse_webhook(address, allow_loopback=allow_loopback), tenant_id=tenant_id)
        elif self.settings.notifications_email_from is None:
            raise Unprocessable(
                "kind: this installation sends no e-mail. Use a webhook, or ask its operator to set "
                "TENORA_NOTIFICATIONS_EMAIL_FROM.",
                code="notifications_not_set_up",
                param="kind",
            )

    def close(self) -> None:
        """Accept no further lookups."""
        self._hosts.close()
