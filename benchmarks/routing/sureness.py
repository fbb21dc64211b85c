"""Asks a model of a running gateway for an answer to each prompt, and how sure it was: what a cascade judges by."""

import math
from collections.abc import Sequence
from typing import Final

import httpx

from benchmarks.routing.training import Prompt

_TOKENS: Final = 64


def sureness(prompts: Sequence[Prompt], *, gateway: str, key: str, model: str) -> dict[str, float]:
    """The geometric mean of the probabilities of an answer's tokens, by prompt."""
    found = {}
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=gateway, headers=headers, timeout=120) as client:
        for prompt in prompts:
            body = {
                "model": model, "messages": [{"role": "user", "content": prompt.text}], "max_tokens": _TOKENS,
                "temperature": 0, "logprobs": True,
            }  # fmt: skip
            answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
            tokens = [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"]]
            found[prompt.text] = math.exp(sum(tokens) / len(tokens))
    return found
