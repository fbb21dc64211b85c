"""What is metered of the prompts of sequences that were aborted before their first token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.usage import AbortedPrefill
from data_plane.gateway.api.token_counts import TokenCounts, reported_prefills, reported_sequences, shared_out


def test_a_report_names_each_prefill():
    assert reported_prefills(b"[[512,128],[64,0]]", prompt_tokens=600) == [
        AbortedPrefill(512, 128),
        AbortedPrefill(64, 0),
    ]


def test_a_sequence_that_never_started_is_left_out():
    assert reported_prefills("[[0,0]]", prompt_tokens=600) == []


@pytest.mark.parametrize(
    "report", [None, b"", b"null", b"{}", b"[[1]]", b"[[-1,0]]", b"[[1,-2]]", b'[["1",0]]', b"\xff"]
)
def test_an_unreadable_report_is_no_report(report):
    assert reported_prefills(report, prompt_tokens=600) is None


@given(computed=st.integers(0, 10**9), cached=st.integers(0, 10**9), prompt_tokens=st.integers(1, 10**6))
def test_no_report_charges_more_than_the_prompt(computed, cached, prompt_tokens):
    for prefill in reported_prefills(f"[[{computed},{cached}]]", prompt_tokens=prompt_tokens) or ():
        assert 0 <= prefill.cached_tokens <= prefill.computed_tokens <= prompt_tokens


def test_aborted_prefills_are_input_beside_the_prompts_of_sequences_with_output():
    counts = TokenCounts([(100, 3), (100, 5)], aborted=(AbortedPrefill(64, 16), AbortedPrefill(100, 0)))
    assert (counts.input_tokens, counts.aborted_prefill_tokens, counts.output_tokens) == (364, 164, 8)


def test_a_report_on_several_sequences_names_those_with_output():
    counts = reported_sequences(b"[[9,4,2],[30,0,0],[5,3,1]]")
    assert counts == TokenCounts([(9, 2), (5, 1)], cached_tokens=7)


@pytest.mark.parametrize("report", [None, b"", "null", b"{}", b"[[1,2]]", b"[[1,-2,3]]", b"\xff"])
def test_an_unreadable_report_on_sequences_is_no_report(report):
    assert reported_sequences(report) is None


@given(prompts=st.lists(st.integers(1, 99), min_size=1, max_size=8), completion=st.integers(0, 50))
def test_what_is_known_in_all_is_shared_out_evenly(prompts, completion):
    counts = shared_out(tuple(prompts), completion, cached_tokens=0)
    assert counts.output_tokens == completion
    outputs = [output for _, output in counts.sequences]
    assert not outputs or max(outputs) - min(outputs) <= 1
    assert [prompt for prompt, _ in counts.sequences] == prompts[: len(outputs)]
