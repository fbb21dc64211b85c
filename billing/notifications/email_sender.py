"""Sends one e-mail through the operator's mail server. Each message has its own connection, which ends with it."""

import smtplib
import ssl
from email.message import EmailMessage

import structlog

from billing.notifications.retries import SendResult
from billing.notifications.settings import SmtpSettings

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
