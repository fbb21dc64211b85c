"""E-mail addresses: what Stripe and mail servers accept, and why others are refused, in words."""

import pytest

from core.email_addresses import email_problem


@pytest.mark.parametrize(
    "address",
    [
        "owner@example.com", "a.b+c@sub.example.co.uk", "o'neil@example.com", "x@1.example.com", "a@b.co",
        "A_B-9@Example.COM", "bill@xn--exmple-cua.com", "team@example.xn--p1ai", "a" * 64 + "@example.com",
    ],
)  # fmt: skip
def test_a_plain_address_has_no_problem(address):
    assert email_problem(address) is None


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("a@b", "its domain 'b' has no dot"),
        ("owner@localhost", "no dot"),
        ("", "exactly one @"),
        ("owner", "exactly one @"),
        ("a@b@example.com", "exactly one @"),
        ("a@example.com,b@example.com", "exactly one @"),
        ("@example.com", "before the @"),
        (".a@example.com", "before the @"),
        ("a.@example.com", "before the @"),
        ("a..b@example.com", "before the @"),
        ("a(b)@example.com", "before the @"),
        ("a" * 65 + "@example.com", "longer than 64"),
        ("owner@", "no dot"),
        ("owner@example.com.", "no domain"),
        ("owner@.example.com", "no domain"),
        ("owner@example..com", "no domain"),
        ("a@-example.com", "no domain"),
        ("a@example-.com", "no domain"),
        ("a@[127.0.0.1]", "no domain"),
        ("a@exa_mple.com", "no domain"),
        ("a@" + "b" * 64 + ".com", "no domain"),
        ("a@127.0.0.1", "no valid ending"),
        ("a@example.c", "no valid ending"),
        ("a b@example.com", "space"),
        (" owner@example.com", "space"),
        ("owner@example.com ", "space"),
        ("a@example.com\n", "space or a control"),
        ("a@example.com\r\nBcc: b@example.com", "space or a control"),
        ("a\x00@example.com", "space or a control"),
        ('"a b"@example.com', "space"),
        ("Owner <owner@example.com>", "space"),
        ("mailto:owner@example.com", "before the @"),
        ("ö@example.com", "ASCII"),
        ("a@exämple.com", "ASCII"),
        ("a@" + "b." * 130 + "com", "longer than 254"),
    ],
)  # fmt: skip
def test_anything_else_has_a_problem_that_is_named(address, problem):
    found = email_problem(address)
    assert found is not None
    assert problem in found
