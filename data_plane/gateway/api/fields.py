"""The allow-list: every scalar field that a caller may send, with its type and bounds.

Structured fields are in openai_messages.py and tool_schemas.py. The tables at the end say what happens to every other
field; the reference page of requests is generated from them.
"""

import math
from collections.abc import Callable, Container
from typing import Any, Final

from core.contracts.usage import SEQUENCES_MAX
from core.errors import InvalidRequest

Check = Callable[[str, Any], Any]
"""Takes a field's name and value, returns the value to forward; raises InvalidRequest naming the field."""

N_MAX: Final = 4
SESSION_CHARS_MAX: Final = 512
STOPS_MAX: Final = 16
BIASES_MAX: Final = 300
_INT64_MAX: Final = 2**63 - 1
_TIERS: Final = frozenset({"auto", "default", "fast", "flex", "priority", "scale", "standard"})


def invalid(name: str, expected: str) -> InvalidRequest:
    """400 ``invalid_value`` for a field."""
    return InvalidRequest(f"`{name}` must be {expected}.", code="invalid_value", param=name)


def text(name: str, value: Any, *, chars_max: int | None = None, empty: bool = True) -> str:
    """A string that UTF-8 can carry."""
    if not isinstance(value, str) or (chars_max is not None and len(value) > chars_max) or not (value or empty):
        bound = f" of {0 if empty else 1} to {chars_max} characters" if chars_max is not None else ""
        raise invalid(name, f"a string{bound}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise invalid(name, "text without lone surrogates") from None
    return value


def prompts(name: str, value: Any, *, most: int = SEQUENCES_MAX) -> list[str]:
    """One string, or a list of them."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not 1 <= len(values) <= most:
        raise invalid(name, f"a string or a list of 1 to {most} strings")
    for index, each in enumerate(values):
        place = name if each is value else f"{name}[{index}]"
        if not isinstance(each, str) or not each:
            raise invalid(place, "a string with at least 1 character; token ids are not supported")
        text(place, each)
    return values


def integer(low: int, high: int) -> Check:
    """A whole number, never a boolean or a float."""

    def check(name: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise invalid(name, f"a whole number from {low} to {high}")
        return value

    return check


def number(low: float, high: float) -> Check:
    """A finite number."""

    def check(name: str, value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
            raise invalid(name, f"a number from {low:g} to {high:g}")
        return float(value)

    return check


def boolean(name: str, value: Any) -> bool:
    """``true`` or ``false``."""
    if type(value) is not bool:
        raise invalid(name, "true or false")
    return value


def members(where: str, value: Any, *keys: str, passed: Container[str] = ()) -> dict[str, Any]:
    """The members of an object, without those that are null or in ``passed``. Raises InvalidRequest that names a member
    of no other ``keys`` by its own path. ``where`` is the object's path in the words of the caller's API.
    """
    if not isinstance(value, dict):
        raise invalid(where, "an object")
    found = {}
    for key, member in value.items():
        if member is None or key in passed:
            continue
        if key in keys:
            found[key] = member
        else:
            check_neutral(f"{where}.{key}", member)
    return found


def service_tier(name: str, value: Any) -> str:
    """Any of OpenAI's tiers."""
    if not isinstance(value, str) or value not in _TIERS:
        raise invalid(name, "one of " + ", ".join(sorted(_TIERS)))
    return value


def stop(name: str, value: Any, place: str = "[{}]") -> list[str]:
    """One string or several, each of 1 to 64 characters. ``place`` follows the name of one in the list."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or len(values) > STOPS_MAX:
        raise invalid(name, f"a string or a list of at most {STOPS_MAX} strings")
    return [
        text(name + place.format(index), item, chars_max=64, empty=False)
        for index, item in enumerate(values)
        if item is not None
    ]


def nucleus(name: str, value: Any) -> float:
    """``top_p``. Zero is the smallest nucleus, the most likely token alone; engines want a number above zero."""
    share: float = number(0, 1)(name, value)
    return max(share, 1e-6)


def logit_bias(name: str, value: Any) -> dict[str, float]:
    """Token ids with a bias from -100 to 100. The bound by vocabulary is checked once the model is known."""
    if not isinstance(value, dict) or len(value) > BIASES_MAX:
        raise invalid(name, f"an object of at most {BIASES_MAX} token ids")
    bias = number(-100, 100)
    given = {token: weight for token, weight in value.items() if weight is not None}
    for token in given:
        if not token.isascii() or not token.isdecimal() or len(token) > 9:
            raise invalid(name, "an object whose keys are token ids")
    return {str(int(token)): bias(f"{name}.{token}", weight) for token, weight in given.items()}


def stream_options(name: str, value: Any) -> dict[str, bool]:
    """``include_usage`` and ``continuous_usage_stats``: which usage the caller wants to see."""
    given = members(name, value, "include_usage", "continuous_usage_stats")
    return {key: boolean(f"{name}.{key}", flag) for key, flag in given.items()}


def template_options(name: str, value: Any) -> dict[str, bool]:
    """``enable_thinking``, for base models whose template uses it. Others could change the rendered prompt."""
    if not isinstance(value, dict):
        raise invalid(name, "an object")
    given = {key: flag for key, flag in value.items() if flag is not None}
    if not given.keys() <= {"enable_thinking"}:
        raise unsupported(name, "it accepts only `enable_thinking`")
    return {key: boolean(f"{name}.{key}", flag) for key, flag in given.items()}


def unknown(name: str) -> InvalidRequest:
    """400 for an unknown field. It is not ignored, because that would change the caller's result silently."""
    shown = name[:64]
    return InvalidRequest(
        f"`{shown}` is not a parameter of this endpoint; remove it.", code="unknown_parameter", param=shown
    )


def unsupported(name: str, fix: str = "remove it") -> InvalidRequest:
    """400 for a field that engines know but that is not offered here."""
    return InvalidRequest(f"`{name}` is not supported; {fix}.", code="unsupported_parameter", param=name)


def check_neutral(name: str, value: Any) -> None:
    """Refuse a field that is not offered, unless its value asks for nothing. Raises InvalidRequest."""
    if not any(value == one and isinstance(value, bool) is isinstance(one, bool) for one in NEUTRAL.get(name, ())):
        raise unsupported(name) if name in REFUSED else unknown(name)


SAMPLING: Final[dict[str, Check]] = {
    "temperature": number(0, 2),
    "top_p": nucleus,
    "min_p": number(0, 1),
    "top_k": integer(-1, 1000),
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "repetition_penalty": number(0.01, 2),
    "seed": integer(-_INT64_MAX, _INT64_MAX),
    "stop": stop,
    "logit_bias": logit_bias,
}
"""Both endpoints forward these fields unchanged."""

ACCEPTED: Final[dict[str, str]] = {
    "model": "an adapter of the tenant (`name`, `name:alias`, `name@revision`), a base model or a group",
    "messages": "text parts and tool calls; chat only; see [messages](#messages)",
    "prompt": f"one string, or a list of strings: each is completed on its own and billed as such, and the answer has "
    f"`n` choices for each, in their order; prompts times `n` are at most {SEQUENCES_MAX}; completions only",
    "max_tokens": "the most tokens of an answer; absent means all that plan and context allow; "
    "a larger value is refused and never lowered silently",
    "max_completion_tokens": "like `max_tokens`; the smaller of the two applies; chat only",
    "n": "1 to 4 answers; each is billed with its prompt",
    "stream": "true for server-sent events",
    "stream_options": "`include_usage`: the usage as the last event; `continuous_usage_stats`: in every event",
    "logprobs": "chat: true or false; completions: 0 to 5",
    "top_logprobs": "0 to 5, with `logprobs`; chat only",
    "tools": "functions, each with a bounded JSON Schema; bounded in bytes together; chat only",
    "tool_choice": '`"auto"`, `"none"`, `"required"` or one function by name; chat only',
    "parallel_tool_calls": "false for at most one call where a call is forced; chat only",
    "response_format": "`text`, `json_object` or `json_schema` with a bounded schema; chat only",
    "chat_template_kwargs": "`enable_thinking`, true or false, for base models whose template uses it; "
    "other options are refused; chat only",
    "user": "a session: a weighted alias always gives it the same revision; it is not stored",
    "prompt_cache_key": "like `user`, when that is absent; the prefix cache needs no key and never crosses tenants",
    "allow_fallback": "false: a group of the rule `overflow` refuses with 503 instead of using a smaller member",
    "service_tier": '`"flex"` asks for batch, at the batch factor of prices, `"priority"` for a short answer; '
    'every other value, and `"flex"` on a plan without a batch factor, for interactive; the answer names the tier of '
    "its price",
}
"""Fields that openai_request.py reads."""

SAMPLED: Final[dict[str, str]] = {
    "temperature": "0 to 2",
    "top_p": "0 to 1; 0 means the most likely token alone",
    "min_p": "0 to 1",
    "top_k": "-1 to 1000",
    "frequency_penalty": "-2 to 2",
    "presence_penalty": "-2 to 2",
    "repetition_penalty": "0.01 to 2",
    "seed": "a whole number of 64 bits",
    "stop": f"one string or up to {STOPS_MAX}, each of 1 to 64 characters",
    "logit_bias": f"at most {BIASES_MAX} token ids of the model's vocabulary, each with -100 to 100",
}
"""Fields that are forwarded after ``SAMPLING`` has checked them."""

IGNORED: Final[dict[str, str]] = {
    "metadata": "answers are not stored, so there is nothing to tag",
    "moderation": "no moderation model runs here",
    "prediction": "a hint for speed that changes no answer; nothing is predicted, and nothing is billed for it",
    "prompt_cache_options": "prefixes are cached for as long as there is room",
    "prompt_cache_retention": "prefixes are cached for as long as there is room",
    "reasoning_effort": "the base models do not reason before they answer",
    "safety_identifier": "callers' own users are not tracked",
    "store": "answers are not stored",
    "verbosity": "the base models have no such setting; ask for it in the prompt",
}
"""Fields that are accepted for compatibility and not forwarded: no engine sees them."""

_REASONS: Final[dict[str, tuple[str, ...]]] = {
    "it changes the template or the tokens by which the prompt is counted": (
        "add_generation_prompt", "add_special_tokens", "chat_template", "continue_final_message",
        "documents", "echo", "prompt_embeds", "return_prompt_text", "suffix",
        "truncate_prompt_tokens", "truncation_side",
    ),
    "it affects the engine or state that requests share": (
        "allowed_token_ids", "bad_words", "data_parallel_rank", "ec_transfer_params", "guided_choice",
        "guided_decoding_backend", "guided_grammar", "guided_json", "guided_regex", "guided_whitespace_pattern",
        "kv_transfer_params", "logits_processors", "repetition_detection", "routed_experts_prompt_start",
        "stream_interval", "structured_outputs", "thinking_token_budget", "vllm_xargs", "watermarking",
    ),
    "the platform sets it": ("cache_salt", "priority", "request_id", "session_id"),
    "it would make the answer's length or cost unbounded": (
        "best_of", "ignore_eos", "length_penalty", "min_tokens", "use_beam_search",
    ),
    "token ids are neither shown nor accepted": (
        "logprob_token_ids", "prompt_logprobs", "return_token_ids", "return_token_offsets",
        "return_tokens_as_token_ids", "stop_token_ids",
    ),
    "only text is supported": (
        "audio", "media_io_kwargs", "mm_payload", "mm_processor_kwargs", "modalities", "return_mm_kwargs",
        "web_search_options",
    ),
    "superseded by `tools` and `tool_choice`": ("function_call", "functions"),
    "the format of answers is fixed": (
        "include_reasoning", "include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens",
        "stream_options.include_obfuscation",
    ),
}  # fmt: skip

REFUSED: Final[dict[str, str]] = {name: reason for reason, names in _REASONS.items() for name in names}
"""Fields that engines or OpenAI know and that are refused by name: each would change what is promised or billed."""

NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "add_generation_prompt": (True,), "bad_words": ([],), "best_of": (1,), "continue_final_message": (False,),
    "documents": ([],), "echo": (False,), "ec_transfer_params": ({},), "function_call": ("none", "auto"),
    "functions": ([],), "ignore_eos": (False,), "include_reasoning": (True,), "include_stop_str_in_output": (False,),
    "kv_transfer_params": ({},), "length_penalty": (1,), "logprob_token_ids": ([],),
    "logits_processors": ([],), "media_io_kwargs": ({},), "min_tokens": (0,), "mm_payload": ("tensors",),
    "mm_processor_kwargs": ({},), "modalities": (["text"],), "priority": (0,), "return_mm_kwargs": (False,),
    "return_prompt_text": (False,), "return_token_ids": (False,), "return_token_offsets": (False,),
    "return_tokens_as_token_ids": (False,), "routed_experts_prompt_start": (0,), "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,), "stop_token_ids": ([],), "stream_interval": (1,),
    "stream_options.include_obfuscation": (False,), "suffix": ("",), "truncation_side": ("left", "right"),
    "use_beam_search": (False,), "vllm_xargs": ({},), "watermarking": (False,),
}  # fmt: skip
"""Values by which a refused field asks for nothing: they are what happens without the field. Null is one for each."""
