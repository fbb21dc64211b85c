"""Sends the link of an invitation by mail, through the operator's mail server.

The link is in the API's answer as well, so a mail that does not arrive delays an invitation and loses nothing.
"""

from typing import Final

from billing.notifications.emails import EmailSender, plain_mail
from billing.notifications.settings import NotificationSettings, SmtpSettings
from control_plane.members.schemas import InvitationCreated

_TEXT: Final = """\
You are invited to Tenora as {role}.

Accept here, within 72 hours. The link works once:

{link}

If you do not know why you got this mail, ignore it: nothing happens without the link.
"""


class InvitationMail:
    """Sends from the calling thread. Without a sender's address it sends nothing."""

    def __init__(self, notifications: NotificationSettings, smtp: SmtpSettings) -> None:
        self._sender = notifications.notifications_email_from
        self._server = EmailSender(smtp)

    def send(self, created: InvitationCreated) -> bool:
        """Whether the mail server took the mail. False for an invitation without an address or without its link."""
        if self._sender is None or created.email is None or created.link is None:
            return False
        text = _TEXT.format(role=created.role, link=created.link)
        mail = plain_mail(created.id, "You are invited", text, sender=self._sender, recipient=created.email)
        return self._server.send(mail).error is None
