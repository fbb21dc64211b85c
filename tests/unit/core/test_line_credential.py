"""The credential of a line of a batch: who may make it, for which request, and until when."""

import pytest

from core.api_keys import hash_key, mint_key
from core.ids import derived_id, is_id, ms_of_id, new_id
from core.line_credential import HEADER, LineCredential, read_line, shown_line, sign_line

PEPPER, OLD = b"pepper-of-the-tests", b"pepper-before-it"
LINE = LineCredential(hash_key(mint_key("live"), PEPPER), new_id("req"))


def test_a_signed_line_is_read_until_it_expires():
    shown = sign_line(LINE, PEPPER, expires_at_s=1_000)
    assert read_line(shown, [PEPPER], now_s=999.9) == LINE
    assert read_line(shown, [PEPPER], now_s=1_000) is None


def test_a_gateway_reads_what_was_signed_before_a_rotation():
    shown = sign_line(LINE, OLD, expires_at_s=1_000)
    assert read_line(shown, [PEPPER, OLD], now_s=0) == LINE
    assert read_line(shown, [PEPPER], now_s=0) is None


def test_what_a_line_says_of_its_run_is_read():
    line = LineCredential(LINE.key_hash, LINE.request_id, is_paid=True, only_stored=True)
    assert read_line(sign_line(line, PEPPER, expires_at_s=1_000), [PEPPER], now_s=0) == line


@pytest.mark.parametrize("part", range(6))
def test_no_part_can_be_changed(part):
    parts = sign_line(LINE, PEPPER, expires_at_s=1_000).split(".")
    parts[part] = parts[part][:-1] + ("1" if parts[part][-1] != "1" else "2")
    assert read_line(".".join(parts), [PEPPER], now_s=0) is None


@pytest.mark.parametrize("text", ["", ".", "...", "a.b.c.d", "é.ü", "80f6c5bb32b4332ef2841f4aeed236e9"])
def test_anything_else_is_no_credential(text):
    assert read_line(text, [PEPPER], now_s=0) is None


def test_the_header_is_found_among_others():
    assert shown_line([(b"host", b"x"), (HEADER.encode(), b"text")]) == "text"
    assert shown_line([(b"host", b"x")]) is None


def test_a_derived_id_follows_from_its_parts():
    one = derived_id("req", 1_700_000_000_123, "batch_1", 7, 0)
    assert one == derived_id("req", 1_700_000_000_123, "batch_1", 7, 0)
    assert is_id(one, "req")
    assert ms_of_id(one) == 1_700_000_000_123
    assert len({one, derived_id("req", 1_700_000_000_123, "batch_1", 7, 1), derived_id("req", 0, "batch_1", 7, 0)}) == 3
