"""Writes the plain-text e-mail of a notification, and sends it through the operator's mail server.

Values come from tenants and payment providers, so each is made one line of plain text before it is filled in: no value
can add a header or imitate a further message.
"""

import smtplib
import ssl
import unicodedata
from collections.abc import Mapping
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Final

import structlog

from billing.notifications.event_types import EVENT_TYPES
from billing.notifications.retries import SendResult
from billing.notifications.settings import SmtpSettings
from core.clock import Clock, now
from core.money import cents_to_nanos, format_usd

_VALUE_LENGTH_MAX: Final = 500
_SUBJECT_LENGTH_MAX: Final = 150
_FOOTER: Final = "\n\n-- \nNotification {notification_id} for the account {tenant_id}.\n"

_log = structlog.get_logger()


class EmailSender:
    """Sends from the calling thread; every answer of the server is waited for at most ``smtp_timeout_ms``."""

    def __init__(self, settings: SmtpSettings, tls: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._tls = tls or ssl.create_default_context()

    def send(self, message: EmailMessage) -> SendResult:
        """Hand the message to the server once. Never raises for what the server or the network does. The tenant sees
        what the server says of the recipient; problems of the server itself are for the operator's log.
        """
        accepted = False
        try:
            with self._connect() as server:
                if self._settings.smtp_user:
                    server.login(self._settings.smtp_user, self._settings.smtp_password.get_secret_value())
                server.send_message(message, from_addr=str(message["From"]), to_addrs=[str(message["To"])])
                accepted = True
        except smtplib.SMTPRecipientsRefused as refused:
            code = next(iter(refused.recipients.values()))[0]
            return SendResult(error=f"the mail server refused this address with the code {code}")
        except (smtplib.SMTPException, OSError) as error:
            if accepted:  # only the farewell failed
                return SendResult()
            _log.warning("mail server failed", server=self._settings.smtp_host, cause=str(error)[:300])
            return SendResult(error="the mail server did not accept the message")
        return SendResult()

    def _connect(self) -> smtplib.SMTP:
        settings, timeout_s = self._settings, self._settings.smtp_timeout_ms / 1000
        if settings.smtp_security == "tls":
            return smtplib.SMTP_SSL(settings.smtp_host, settings.smtp_port, timeout=timeout_s, context=self._tls)
        server = smtplib.SMTP(settings.smtp_host, settings.smtp_port, timeout=timeout_s)
        if settings.smtp_security == "starttls":
            try:
                server.starttls(context=self._tls)
            except BaseException:
                server.close()
                raise
        return server


def compose(
    *,
    notification_id: str,
    tenant_id: str,
    event_type: str,
    data: Mapping[str, Any],  # JSON
    sender: str,
    recipient: str,
    clock: Clock,
) -> EmailMessage:
    """The message for one recipient."""
    kind = EVENT_TYPES[event_type]
    values = {name: _shown(name, value) for name, value in data.items()}
    footer = _FOOTER.format(notification_id=notification_id, tenant_id=tenant_id)
    subject, text = kind.subject.format_map(values), kind.text.format_map(values) + footer
    return plain_mail(notification_id, subject, text, sender=sender, recipient=recipient, clock=clock)


def plain_mail(
    mail_id: str, subject: str, text: str, *, sender: str, recipient: str, clock: Clock = now
) -> EmailMessage:
    """A message of plain text. Each attempt has the same Message-ID, by which mailboxes drop a double."""
    message = EmailMessage()
    message["From"] = sender
    message["To"] = recipient
    message["Subject"] = f"[Tenora] {subject}"[:_SUBJECT_LENGTH_MAX]
    message["Date"] = format_datetime(clock())
    message["Message-ID"] = f"<{mail_id}@{sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message["X-Auto-Response-Suppress"] = "All"
    message.set_content(text)
    return message


def _shown(name: str, value: object) -> str:
    """A value as one line: money as dollars, control characters as spaces."""
    if isinstance(value, int) and not isinstance(value, bool):
        if name.endswith("_nanos"):
            return format_usd(value)
        if name.endswith("_cents"):
            return format_usd(cents_to_nanos(value))
    text = "none" if value is None else str(value)
    plain = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in text)
    return plain if len(plain) <= _VALUE_LENGTH_MAX else plain[: _VALUE_LENGTH_MAX - 1] + "…"
