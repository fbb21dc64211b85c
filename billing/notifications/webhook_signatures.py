"""Signs webhooks by the Standard Webhooks specification. The only importer of the ``standardwebhooks`` library."""

from collections.abc import Sequence
from datetime import datetime

from standardwebhooks import Webhook


def signed_headers(*, message_id: str, at: datetime, body: str, secrets: Sequence[str]) -> dict[str, str]:
    """The three headers for one attempt: the same ``webhook-id`` every time, the attempt's own time in UTC, and one
    signature for each secret, so that a receiver may have the old or the new one during a rotation.
    """
    signatures = [Webhook(secret).sign(message_id, at, body) for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
