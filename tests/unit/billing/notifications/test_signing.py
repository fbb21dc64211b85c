"""Signing secrets and signatures: what a receiver verifies, and what a thief of the database cannot open."""

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from billing.notifications.signing_secrets import SecretBox, SecretUnreadable
from billing.notifications.webhook_sender import signed_headers
from core import clock

BOX = SecretBox([b"key-of-the-tests"])
OTHER = SecretBox([b"another-key-here"])
BODY = '{"type":"spend.threshold_reached","data":{"name":"Zoë"}}'


def signed(*secrets: str) -> dict[str, str]:
    return signed_headers(message_id="ntf_1", at=clock.now(), body=BODY, secrets=secrets)


def test_a_sealed_secret_opens_again_and_is_not_readable_in_the_database():
    secret = BOX.new_secret()
    sealed = BOX.seal(secret, "nep_1")
    assert BOX.open(sealed, "nep_1") == secret
    assert secret.encode() not in sealed
    assert BOX.seal(secret, "nep_1") != sealed
    assert "key-of-the-tests" not in repr(BOX)


def test_secrets_have_the_format_and_length_of_standard_webhooks():
    assert BOX.new_secret() != BOX.new_secret()
    assert BOX.new_secret().startswith("whsec_")
    assert len(Webhook(BOX.new_secret())._whsecret) == 32


def test_a_secret_that_was_moved_to_another_row_or_changed_does_not_open():
    sealed = BOX.seal(BOX.new_secret(), "nep_1")
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for bytes_, endpoint in ((sealed, "nep_2"), (changed, "nep_1"), (b"\x02" + sealed[1:], "nep_1"), (b"", "nep_1")):
        with pytest.raises(SecretUnreadable):
            BOX.open(bytes_, endpoint)


def test_the_previous_key_opens_what_it_encrypted_and_the_new_one_encrypts():
    secret = BOX.new_secret()
    rotated = SecretBox([b"another-key-here", b"key-of-the-tests"])
    assert rotated.open(BOX.seal(secret, "nep_1"), "nep_1") == secret
    assert OTHER.open(rotated.seal(secret, "nep_1"), "nep_1") == secret
    with pytest.raises(SecretUnreadable):
        OTHER.open(BOX.seal(secret, "nep_1"), "nep_1")


def test_a_confirmation_code_belongs_to_one_endpoint_and_one_address():
    code = BOX.confirmation_code("nep_1", "owner@example.com")
    assert len(code) == 16
    assert BOX.confirms(code, "nep_1", "owner@example.com")
    assert BOX.confirms(f" {code.upper()} ", "nep_1", "owner@example.com")
    assert not BOX.confirms(code, "nep_2", "owner@example.com")
    assert not BOX.confirms(code, "nep_1", "other@example.com")
    assert not BOX.confirms("", "nep_1", "owner@example.com")
    assert not BOX.confirms("ä" * 16, "nep_1", "owner@example.com")
    assert SecretBox([b"another-key-here", b"key-of-the-tests"]).confirms(code, "nep_1", "owner@example.com")


def test_the_library_verifies_a_signature_with_either_secret_of_a_rotation():
    new, old = BOX.new_secret(), BOX.new_secret()
    headers = signed(new, old)
    assert len(headers["webhook-signature"].split()) == 2
    for secret in (new, old):
        assert Webhook(secret).verify(BODY, headers)["data"] == {"name": "Zoë"}


def test_a_changed_body_a_changed_id_or_a_foreign_secret_does_not_verify():
    secret = BOX.new_secret()
    headers = signed(secret)
    for body, sent in ((BODY + " ", headers), (BODY, headers | {"webhook-id": "ntf_2"})):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body, sent)
    with pytest.raises(WebhookVerificationError):
        Webhook(BOX.new_secret()).verify(BODY, headers)
