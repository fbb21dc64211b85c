"""Ids, API keys, money and pages: the basic arithmetic."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.api_keys import hash_key, is_well_formed, mint_key, redact, shown_keys
from core.ids import first_id_of_ms, is_id, ms_of_id, new_id
from core.kv_pages import page_ms, pages_for
from core.money import cents_to_nanos, distribute, format_usd, round_to_cents


def test_ids_sort_by_the_time_they_were_made():
    first = new_id("req")
    time.sleep(0.002)
    assert first < new_id("req")


def test_an_id_knows_its_kind():
    assert is_id(new_id("ad"), "ad")
    assert not is_id(new_id("ad"), "tn")
    assert not is_id("ad_" + "u" * 26, "ad")  # not in the alphabet
    assert not is_id("ad_../../etc/passwd", "ad")


@given(st.sampled_from(["live", "admin"]), st.data())
def test_any_single_wrong_character_is_refused_without_a_lookup(audience, data):
    key = mint_key(audience)
    assert is_well_formed(key)
    at = data.draw(st.integers(0, len(key) - 1))
    character = data.draw(st.sampled_from("aZ09_-é \0"))
    if character != key[at]:
        assert not is_well_formed(key[:at] + character + key[at + 1 :])


@pytest.mark.parametrize("text", ["", "Bearer", "tnr_live_", "' OR 1=1 --", "tnr_live_" + "x" * 10_000, "tnr_live_\0"])
def test_an_invalid_key_is_refused(text):
    assert not is_well_formed(text)


@pytest.mark.parametrize(
    ("headers", "keys"),
    [
        ([], []),
        (["", "  ", "Bearer", "Bearer ", "bearer \t"], []),
        (["Bearer ", "Bearer a"], ["a"]),
        (["Bearer a", "bearer  a ", " BEARER a"], ["a"]),
        (["Bearer a", "Bearer b"], ["a", "b"]),
        (["Bearer a b"], ["a b"]),
        (["Basic a", "Bearer a"], ["Basic a", "a"]),
        (["a"], ["a "]),
    ],
    ids=str,
)
def test_headers_without_a_key_are_absent_and_the_same_key_twice_is_one(headers, keys):
    assert shown_keys(headers) == set(keys)
    assert not is_well_formed(f"{mint_key('live')} "), "a key without a scheme is none"


def test_the_hash_depends_on_the_pepper_and_the_redaction_hides_the_secret():
    key = mint_key("live")
    assert hash_key(key, b"one") != hash_key(key, b"two")
    assert len(redact(key)) < 20
    assert redact(key).endswith(key[-4:])


@given(st.integers(-(10**15), 10**15))
def test_rounding_to_cents_moves_by_at_most_half_a_cent(amount_nanos):
    assert abs(cents_to_nanos(round_to_cents(amount_nanos)) - amount_nanos) <= 5_000_000
    assert round_to_cents(-amount_nanos) == -round_to_cents(amount_nanos)


@pytest.mark.parametrize(
    ("nanos", "text"), [(0, "$0.00"), (1, "$0.000000001"), (1_500_000_000, "$1.50"), (-10_000_000, "-$0.01")]
)
def test_money_reads_as_dollars(nanos, text):
    assert format_usd(nanos) == text


@given(st.integers(0, 100_000), st.sampled_from([16, 32, 128]))
def test_pages_cover_the_tokens_and_waste_less_than_a_block(tokens, block_tokens):
    pages = pages_for(tokens, block_tokens)
    assert 0 <= pages * 16 - tokens < block_tokens
    assert page_ms(tokens, 250, block_tokens) == pages * 250


def test_a_block_of_32_tokens_is_two_pages():
    assert pages_for(1, 32) == 2


def test_an_id_says_the_millisecond_in_which_it_was_made():
    for unix_ms in (0, 1, 1_795_000_000_123, 2**48 - 1):
        assert ms_of_id(first_id_of_ms("req", unix_ms)) == unix_ms
    assert abs((ms_of_id(new_id("req")) or 0) - time.time() * 1000) < 10_000
    assert ms_of_id("req_1") is None
    assert ms_of_id(new_id("req") + ":rest") is None


@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**12), min_size=1, max_size=50))
def test_shares_are_the_total_and_within_one_of_proportional(total, weights):
    shares = distribute(total, weights)
    whole = sum(weights)
    if whole:
        assert sum(shares) == total
        assert all(abs(share * whole - total * weight) < whole for share, weight in zip(shares, weights, strict=True))
