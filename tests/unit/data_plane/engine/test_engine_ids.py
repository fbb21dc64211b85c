"""Prompts of a completion and texts of embeddings have an id each in vLLM; the first one's stands for the request."""

import pytest

from core.contracts.usage import INPUTS_MAX, SEQUENCES_MAX
from data_plane.engine.engine_ids import prompts_of, request_of


@pytest.mark.parametrize(
    ("vllm_id", "request_id"),
    [
        ("chatcmpl-req_1", "chatcmpl-req_1"),
        ("chatcmpl-local-12", "chatcmpl-local-12"),
        ("cmpl-req_1-0", "cmpl-req_1-0"),
        ("cmpl-req_1-31", "cmpl-req_1-0"),
        ("cmpl-local-12-3", "cmpl-local-12-0"),
        ("embd-req_1-255", "embd-req_1-0"),
    ],
)
def test_a_sequence_belongs_to_its_request(vllm_id, request_id):
    assert request_of(vllm_id) == request_id
    assert vllm_id in list(prompts_of([request_id]))


def test_a_request_has_as_many_prompts_as_gateways_send():
    assert list(prompts_of(["chatcmpl-req_1"])) == ["chatcmpl-req_1"]
    assert list(prompts_of(["cmpl-req_1-0"])) == [f"cmpl-req_1-{index}" for index in range(SEQUENCES_MAX)]
    assert len(list(prompts_of(["embd-req_1-0"]))) == INPUTS_MAX
