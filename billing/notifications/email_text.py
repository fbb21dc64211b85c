"""Writes the plain-text e-mail of a notification. Values come from tenants and payment providers, so each is made one
line of plain text before it is filled in: no value can add a header or imitate a further message.
"""

import unicodedata
from collections.abc import Mapping
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Final

from billing.notifications.event_types import EVENT_TYPES
from core.clock import Clock
from core.money import cents_to_nanos, format_usd

_VALUE_LENGTH_MAX: Final = 500
_SUBJECT_LENGTH_MAX: Final = 150
_FOOTER: Final = "\n\n-- \nNotification {notification_id} for the account {tenant_id}.\n"


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
    """The message for one recipient. Each attempt has the same Message-ID, by which mailboxes drop a double."""
    kind = EVENT_TYPES[event_type]
    values = {name: _shown(name, value) for name, value in data.items()}
    footer = _FOOTER.format(notification_id=notification_id, tenant_id=tenant_id)
    message = EmailMessage()
    message["From"] = sender
    message["To"] = recipient
    message["Subject"] = f"[Tenora] {kind.subject.format_map(values)}"[:_SUBJECT_LENGTH_MAX]
    message["Date"] = format_datetime(clock())
    message["Message-ID"] = f"<{notification_id}@{sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message["X-Auto-Response-Suppress"] = "All"
    message.set_content(kind.text.format_map(values) + footer)
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
