"""What becomes of each field that a request may name: taken, accepted without effect, or refused, with the reason.

The reference page of requests is made from these tables; how values are checked is in fields.py and its neighbours.
"""

from typing import Final

TAKEN: Final[dict[str, str]] = {
    "model": "an adapter of the tenant (`name`, `name:alias`, `name@revision`) or a base model",
    "messages": "1 to 256 messages of text parts and tool calls; chat only",
    "prompt": "one string; completions only",
    "max_tokens": "the most tokens of an answer; absent means all that plan and context allow, "
    "and more than that is refused, never lowered without a word",
    "max_completion_tokens": "as `max_tokens`, and the smaller of the two counts; chat only",
    "n": "1 to 4 answers; each is billed with its prompt",
    "stream": "true for server-sent events",
    "stream_options": "`include_usage`: the usage as the last event; `continuous_usage_stats`: in every event",
    "logprobs": "chat: true or false; completions: 0 to 5",
    "top_logprobs": "0 to 5, with `logprobs`; chat only",
    "tools": "1 to 32 functions, each with a bounded JSON Schema; chat only",
    "tool_choice": '`"auto"`, `"none"`, `"required"` or one function by name; chat only',
    "parallel_tool_calls": "false for at most one call where a call is forced; chat only",
    "response_format": "`text`, `json_object` or `json_schema` with a bounded schema; chat only",
    "chat_template_kwargs": "`enable_thinking`, true or false, for base models whose template asks for it; "
    "anything else in it is refused; chat only",
    "user": "a session: a weighted alias gives it always the same revision; nothing is kept",
    "prompt_cache_key": "as `user`, where there is none; the prefix cache needs no key and never crosses tenants",
    "service_tier": 'every tier is the default one, and the answer says so: `"service_tier": "default"`',
}
"""Decided in body.py."""

SAMPLED: Final[dict[str, str]] = {
    "temperature": "0 to 2",
    "top_p": "above 0, up to 1",
    "min_p": "0 to 1",
    "top_k": "-1 to 1000",
    "frequency_penalty": "-2 to 2",
    "presence_penalty": "-2 to 2",
    "repetition_penalty": "0.01 to 2",
    "seed": "a whole number of 64 bits",
    "stop": "one string or up to 4, each of 1 to 64 characters",
    "logit_bias": "at most 64 token ids of the model's vocabulary, each with -100 to 100",
}
"""Forwarded after fields.SAMPLING has checked them."""

IGNORED: Final[dict[str, str]] = {
    "metadata": "answers are not stored, so that there is nothing to tag",
    "moderation": "no moderation model runs here",
    "prediction": "a hint for speed that changes no answer; nothing is predicted, and nothing is billed for it",
    "prompt_cache_options": "prefixes are cached for as long as there is room",
    "prompt_cache_retention": "prefixes are cached for as long as there is room",
    "reasoning_effort": "the base models do not reason before they answer",
    "safety_identifier": "callers' own users are not followed",
    "store": "answers are not stored",
    "verbosity": "the base models have no such setting; ask for it in the prompt",
}
"""Accepted for compatibility and not forwarded: no engine sees them."""

_REASONS: Final[dict[str, tuple[str, ...]]] = {
    "it changes the template or the tokens that the prompt is counted by": (
        "add_generation_prompt", "add_special_tokens", "chat_template", "continue_final_message",
        "documents", "echo", "prompt_embeds", "return_prompt_text", "suffix",
        "truncate_prompt_tokens", "truncation_side",
    ),
    "it reaches into the engine or into what other requests share": (
        "allowed_token_ids", "bad_words", "data_parallel_rank", "ec_transfer_params", "guided_choice",
        "guided_decoding_backend", "guided_grammar", "guided_json", "guided_regex", "guided_whitespace_pattern",
        "kv_transfer_params", "logits_processors", "repetition_detection", "routed_experts_prompt_start",
        "stream_interval", "structured_outputs", "thinking_token_budget", "vllm_xargs", "watermarking",
    ),
    "it is the platform's to decide": ("cache_salt", "priority", "request_id", "session_id"),
    "it would make the answer's length or cost unbounded": (
        "best_of", "ignore_eos", "length_penalty", "min_tokens", "use_beam_search",
    ),
    "token ids are not shown or taken": (
        "logprob_token_ids", "prompt_logprobs", "return_token_ids", "return_token_offsets",
        "return_tokens_as_token_ids", "stop_token_ids",
    ),
    "text in, text out": (
        "audio", "media_io_kwargs", "mm_payload", "mm_processor_kwargs", "modalities", "return_mm_kwargs",
        "web_search_options",
    ),
    "superseded by `tools` and `tool_choice`": ("function_call", "functions"),
    "answers are shown as the model means them": (
        "include_reasoning", "include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens",
    ),
}  # fmt: skip

REFUSED: Final[dict[str, str]] = {name: reason for reason, names in _REASONS.items() for name in names}
"""Known to engines or to OpenAI, and refused by name: each would otherwise change what is promised or billed."""
