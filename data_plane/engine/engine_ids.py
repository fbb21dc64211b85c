"""The ids under which vLLM (0.32) knows a request.

Its answers and its sequences carry the id of a chat as it is. A completion is one vLLM request for each of its prompts,
numbered from 0 (``openai/completion/serving.py``), and so are embeddings (``pooling/base/serving.py``); the id of the
first one stands for all of them here and at gateways.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from core.contracts.usage import INPUTS_MAX, SEQUENCES_MAX

BY_PATH: Final = {
    "/v1/chat/completions": "chatcmpl-{}", "/v1/completions": "cmpl-{}-0", "/v1/embeddings": "embd-{}-0",
}  # fmt: skip
"""How vLLM derives its own id from a request id."""

_PROMPT: Final = re.compile(r"^((cmpl|embd)-.+-)\d+$")


def request_of(vllm_id: str) -> str:
    """The id of the whole request."""
    return _PROMPT.sub(r"\g<1>0", vllm_id)


def prompts_of(engine_ids: Iterable[str]) -> Iterator[str]:
    """All ids that vLLM may know for these requests."""
    for engine_id in engine_ids:
        if completion := _PROMPT.match(engine_id):
            most = SEQUENCES_MAX if completion[2] == "cmpl" else INPUTS_MAX
            yield from (f"{completion[1]}{index}" for index in range(most))
        else:
            yield engine_id
