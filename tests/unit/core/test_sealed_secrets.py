"""Secrets that are stored encrypted open for their owner alone, and with a key from before a rotation."""

import pytest

from core.sealed_secrets import CannotOpen, Sealer

OLD, NEW = b"key before the rotation", b"key after the rotation"


def test_a_secret_opens_for_its_owner():
    sealer = Sealer([NEW], purpose=b"test")
    sealed = sealer.seal("sk-secret", "prv_1")
    assert b"sk-secret" not in sealed
    assert sealer.open(sealed, "prv_1") == "sk-secret"
    assert sealer.seal("sk-secret", "prv_1") != sealed


def test_a_key_from_before_a_rotation_still_opens():
    sealed = Sealer([OLD], purpose=b"test").seal("sk-secret", "prv_1")
    assert Sealer([NEW, OLD], purpose=b"test").open(sealed, "prv_1") == "sk-secret"


@pytest.mark.parametrize(
    ("sealer", "owner"),
    [
        (Sealer([OLD], purpose=b"test"), "prv_2"),
        (Sealer([OLD], purpose=b"another"), "prv_1"),
        (Sealer([NEW], purpose=b"test"), "prv_1"),
        (Sealer([], purpose=b"test"), "prv_1"),
    ],
)
def test_nothing_else_opens_it(sealer, owner):
    sealed = Sealer([OLD], purpose=b"test").seal("sk-secret", "prv_1")
    with pytest.raises(CannotOpen):
        sealer.open(sealed, owner)


@pytest.mark.parametrize("damaged", [b"", b"\x01", b"\x02" + bytes(40), bytes(60)])
def test_what_is_no_sealed_secret_does_not_open(damaged):
    with pytest.raises(CannotOpen):
        Sealer([OLD], purpose=b"test").open(damaged, "prv_1")
