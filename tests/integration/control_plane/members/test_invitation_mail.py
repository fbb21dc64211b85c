"""The link of an invitation by mail, through a real mail server; and what happens without one."""

from dataclasses import replace

import pytest

from billing.notifications.settings import NotificationSettings, SmtpSettings
from tests.fixtures.control_plane.browser import accept, join
from tests.fixtures.notifications.receivers import mail_server

ANN = {"email": "ann@example.com", "role": "developer"}


@pytest.fixture
def mail():
    with mail_server() as server:
        yield server


@pytest.fixture
def settings(settings, mail):
    smtp = SmtpSettings(smtp_host="127.0.0.1", smtp_port=mail.port, smtp_security="none")
    return replace(
        settings, notifications=NotificationSettings(notifications_email_from="console@tenora.example"), smtp=smtp
    )


def test_an_invitation_arrives_by_mail_and_its_link_makes_a_member(api, mail):
    tenant = api.tenant()
    owner = join(api, tenant, "owner").browser
    owner.open("/team")
    owner.send("Make an invitation link", **ANN)
    assert "A mail with it is on its way to ann@example.com" in owner.text
    (received,) = mail.to("ann@example.com")
    assert received["From"] == "console@tenora.example"
    link = next(line for line in received.get_content().splitlines() if line.startswith(api.url))
    accept(api, link, "ann@example.com")
    assert "ann@example.com" in owner.open("/team").text


def test_a_replay_sends_no_second_mail_and_a_refused_one_leaves_the_link(api, mail):
    path = f"/api/v1/admin/tenants/{api.tenant().id}/invitations"
    made = [api.admin.post(path, json=ANN, headers={"idempotency-key": "ann"}).json() for _ in range(2)]
    assert [(each["mailed"], each["link"] is not None) for each in made] == [(True, True), (False, False)]
    assert len(mail.to("ann@example.com")) == 1
    mail.refuse = "550 no such mailbox"
    refused = api.admin.post(path, json=ANN | {"email": "bob@example.com"}).json()
    assert (refused["mailed"], refused["link"].startswith(api.url)) == (False, True)
