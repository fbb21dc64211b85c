"""What a gateway remembers of compiled grammars is bounded by their size, and each tenant forgets its own."""

import pytest

from data_plane.gateway.api.grammar_results import GrammarResults


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def results(now) -> GrammarResults[str | None]:
    return GrammarResults(count_max=6, bytes_max=100, clock=lambda: now[0])


def known(results: GrammarResults[str | None], digests: bytes) -> bytes:
    return bytes(each for each in digests if results.get(bytes([each])) is not None)


def test_over_the_size_the_grammar_used_least_recently_is_forgotten(results):
    for digest in (b"a", b"b", b"c"):
        results.put("tn_1", digest, None, size_bytes=30)
    results.get(b"a")
    results.put("tn_1", b"d", None, size_bytes=30)
    assert known(results, b"abcd") == b"acd"


def test_a_tenant_with_many_grammars_forgets_its_own_and_no_other_tenants(results):
    results.put("tn_2", b"z", "refused", size_bytes=10)
    for digest in (b"a", b"b", b"c", b"d", b"e"):
        results.put("tn_1", digest, None, size_bytes=40)
    assert known(results, b"abcdez") == b"dez"
    assert results.get(b"z").result == "refused"


def test_refusals_have_no_size_and_are_bounded_by_their_number(results):
    for digest in range(20):
        results.put("tn_1", bytes([digest]), "refused")
    assert known(results, bytes(range(20))) == bytes(range(14, 20))


def test_a_grammar_that_is_larger_than_all_may_be_is_not_remembered(results):
    results.put("tn_1", b"a", None, size_bytes=101)
    assert known(results, b"a") == b""
    assert not results._entries
    assert not results._sizes_bytes


def test_a_result_with_an_end_is_forgotten_then(results, now):
    results.put("tn_1", b"a", "too slow", valid_s=60)
    now[0] += 59
    assert results.get(b"a").result == "too slow"
    now[0] += 1
    assert results.get(b"a") is None


def test_a_result_that_is_put_again_counts_once(results):
    for tenant in ("tn_1", "tn_2", "tn_1"):
        results.put(tenant, b"a", None, size_bytes=60)
    results.put("tn_3", b"b", None, size_bytes=40)
    assert known(results, b"ab") == b"ab"
