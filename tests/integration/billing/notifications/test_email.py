"""Alerts by e-mail through a real SMTP server: what arrives, how it is protected, and what values cannot do to it."""

import smtplib

import pytest
from pydantic import SecretStr

from billing.notifications.emails import EmailSender, compose
from billing.notifications.event_types import EVENT_TYPES
from billing.notifications.settings import NotificationSettings, SmtpSettings
from core import clock
from core.errors import InvalidSettings
from tests.fixtures.notifications.receivers import certificate, free_port, mail_server
from tests.integration.billing.notifications.conftest import SPEND


def message(event_type: str = "spend.threshold_reached", **data):
    return compose(
        notification_id="ntf_1",
        tenant_id="tn_1",
        event_type=event_type,
        data=SPEND | data,
        sender="billing@tenora.example",
        recipient="owner@example.com",
        clock=clock.now,
    )


def test_an_alert_arrives_as_plain_text_with_amounts_in_dollars(alerts, mail):
    endpoint, _ = alerts.endpoint("tn_1", "owner@example.com")
    notification = alerts.notify("tn_1", "spend:50", scope="Zoë's account")
    assert alerts.deliver_due() == 1
    (received,) = mail.messages
    assert received["To"] == "owner@example.com"
    assert received["From"] == "billing@tenora.example"
    assert received["Subject"] == "[Tenora] 50 % of the spending limit of Zoë's account is used"
    assert received["Message-ID"] == f"<{notification}@tenora.example>"
    assert received["Auto-Submitted"] == "auto-generated"
    assert received.get_content_type() == "text/plain"
    assert "has spent $5.00 of its limit of $10.00" in received.get_content()
    assert alerts.deliveries(endpoint)[0]["state"] == "delivered"


@pytest.mark.parametrize("bad", ["a\r\nBcc: thief@example.com", "a\r\n\r\nnew body", "a\x00b"])
def test_no_value_can_add_a_header_or_a_line(alerts, mail, bad):
    alerts.endpoint("tn_1", "owner@example.com")
    if "\x00" not in bad:
        alerts.notify("tn_1", "spend:50", scope=bad)
        alerts.deliver_due()
        (received,) = mail.messages
        assert received["Bcc"] is None
        assert len(received.get_all("Subject")) == 1
        assert mail.recipients == [["owner@example.com"]]
    text = message(scope=bad).get_content()
    assert text.splitlines()[0].startswith("a")
    assert len(text.splitlines()) == len(message(scope="a").get_content().splitlines())


def test_a_value_is_no_template_and_a_long_one_is_cut():
    assert "{limit_nanos}" in message(scope="{limit_nanos}").get_content()
    long = message(scope="x" * 5_000)
    assert len(long["Subject"]) <= 150
    assert len(long.get_content()) < 2_000


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=lambda kind: kind.name)
def test_every_type_has_an_email(kind):
    data = {field: 7 if field.endswith(("_nanos", "_cents")) else f"the {field}" for field in kind.fields}
    written = message(kind.name, code="the code", **data)
    for field in kind.fields:
        if not field.endswith(("_nanos", "_cents")) and f"{{{field}}}" in kind.text:
            assert f"the {field}" in written.get_content()


def sender(port: int, tls=None, **changes) -> EmailSender:
    return EmailSender(SmtpSettings(smtp_host="localhost", smtp_port=port, **changes), tls)


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")  # TLS is around it, from the start
@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_mail_and_password_travel_encrypted(tmp_path, security):
    server, client = certificate(tmp_path, "localhost")
    with mail_server(**{security: server}, password="secret") as mail:
        login = {"smtp_user": "tenora", "smtp_password": SecretStr("secret")}
        assert sender(mail.port, client, smtp_security=security, **login).send(message()).error is None
        assert (mail.users, len(mail.messages)) == (["tenora"], 1)
        wrong = login | {"smtp_password": SecretStr("wrong")}
        assert sender(mail.port, client, smtp_security=security, **wrong).send(message()).error is not None
        assert sender(mail.port, smtp_security=security, **login).send(message()).error is not None, "not trusted"
        assert len(mail.messages) == 1


def test_a_server_without_starttls_gets_nothing(mail):
    attempt = sender(mail.port, smtp_security="starttls").send(message())
    assert attempt.error == "the mail server did not accept the message"
    assert mail.messages == []


def test_a_refused_address_is_retried_and_then_given_up(alerts, mail):
    mail.refuse = "550 no such user"
    endpoint, _ = alerts.endpoint("tn_1", "owner@example.com")
    alerts.notify("tn_1", "spend:50")
    alerts.deliver_due()
    row = alerts.deliveries(endpoint)[0]
    assert (row["state"], row["last_error"]) == ("pending", "the mail server refused this address with the code 550")


def test_a_mail_server_that_is_down_is_an_error_without_details():
    assert sender(free_port(), smtp_security="none").send(message()).error == (
        "the mail server did not accept the message"
    )


def test_a_farewell_that_fails_does_not_send_the_mail_again(mail, monkeypatch):
    def fail(_self) -> None:
        raise smtplib.SMTPServerDisconnected("tests")

    real = smtplib.SMTP.__exit__
    monkeypatch.setattr(smtplib.SMTP, "__exit__", lambda self, *args: (real(self, *args), fail(self)))
    assert sender(mail.port, smtp_security="none").send(message()).error is None
    assert len(mail.messages) == 1


def test_without_a_sender_no_mail_is_sent(alerts, mail):
    alerts.endpoint("tn_1", "owner@example.com")
    alerts.notify("tn_1", "spend:50")
    (claimed,) = alerts.queue.claim(1)
    assert alerts.courier(sender=None).attempt(claimed).error == "e-mail is not set up at this installation"
    assert mail.messages == []


def test_settings_refuse_a_password_in_plain_text_and_a_bad_sender():
    with pytest.raises(InvalidSettings, match="TENORA_SMTP_SECURITY is none"):
        SmtpSettings(smtp_user="tenora", smtp_security="none")
    with pytest.raises(InvalidSettings, match="no e-mail address"):
        NotificationSettings(notifications_email_from="billing\r\nBcc: x@example.com")


def test_production_refuses_loopback_and_is_the_default():
    with pytest.raises(InvalidSettings, match="TENORA_NOTIFICATIONS_ALLOW_LOOPBACK is true, which production refuses"):
        NotificationSettings(notifications_allow_loopback=True)
    assert NotificationSettings(notifications_allow_loopback=True, deployment="one-machine").deployment == "one-machine"
