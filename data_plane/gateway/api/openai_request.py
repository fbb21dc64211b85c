"""Parses the caller's body by an allow-list and rebuilds it for an engine. No field is forwarded by default."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import msgspec

from core import strict_json
from core.contracts.usage import SEQUENCES_MAX
from core.errors import InvalidRequest
from data_plane.gateway.api import fields, tool_schemas
from data_plane.gateway.api import openai_messages as messages
from data_plane.gateway.api.fields import invalid

Kind = Literal["chat", "completion", "embedding", "tokenize"]
UsageShown = Literal["none", "final", "continuous"]

ENGINE_PATHS: Final[dict[Kind, str]] = {
    "chat": "/v1/chat/completions", "completion": "/v1/completions", "embedding": "/v1/embeddings",
}  # fmt: skip
ID_PREFIXES: Final[dict[Kind, str]] = {"chat": "chatcmpl-", "completion": "cmpl-", "embedding": "embd-"}

_OUTPUT_MAX: Final = 2**31 - 1
_ENCODER: Final = msgspec.json.Encoder()
_count = fields.integer(1, _OUTPUT_MAX)
_n = fields.integer(1, fields.N_MAX)
_logprobs = fields.integer(0, 5)


class Paths(NamedTuple):
    """Where a caller's API holds what later checks name in errors."""

    tool_schema: str = "tools[{}].function.parameters"
    chosen_tool: str = "tool_choice.function.name"
    answer_schema: str = "response_format.json_schema.schema"


OPENAI_PATHS: Final = Paths()


_GREEDY: Final = 1e-5
"""Below this temperature an engine takes the likeliest token, and makes one answer only."""


@dataclass(slots=True, kw_only=True)
class Call:
    """A caller's parsed request. ``fields`` are forwarded unchanged; the gateway decides the rest. ``session`` is the
    caller's name for its session, and is not forwarded. ``service_tier`` is the tier that it asked for, and
    ``allow_fallback`` whether a group may answer with a smaller member where the best one has no room in time.
    ``max_tokens_param`` is the parameter in which the caller sent ``max_tokens``; ``paths`` are those of its API.
    """

    kind: Kind
    model: str
    messages: list[dict[str, Any]] | None
    prompts: list[str] | None
    tools: list[dict[str, Any]] | None
    n: int
    max_tokens: int | None
    stream: bool
    usage_shown: UsageShown
    fields: dict[str, Any]
    session: str = ""
    service_tier: str | None = None
    allow_fallback: bool = True
    max_tokens_param: str = "max_tokens"
    paths: Paths = OPENAI_PATHS


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bounds that settings decide."""

    json_depth_max: int
    messages_max: int
    tools_max_bytes: int = 262_144


Parse = Callable[[Kind, bytes, BodyLimits], Call]
"""Reads a request body of one API's shape. Raises InvalidRequest naming the first field that is wrong."""


def read_object(raw: bytes, limits: BodyLimits) -> dict[str, Any]:
    """The JSON object that a body is. Raises InvalidRequest ``invalid_json``."""
    try:
        body = strict_json.parse(raw, depth_max=limits.json_depth_max)
    except strict_json.JsonRefused as error:
        raise InvalidRequest(
            f"The body is not valid JSON: {str(error).removeprefix('not JSON: ')}.",
            code="invalid_json",
            param=error.key,
        ) from None
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_json")
    return body


def empty_call(kind: Kind, model: Any) -> Call:
    """A call of which nothing but the model is known. Raises InvalidRequest where that is no name."""
    if not isinstance(model, str) or not model:
        raise invalid("model", "the name of a model")
    return Call(
        kind=kind, model=fields.text("model", model), messages=None, prompts=None, tools=None, n=1, max_tokens=None,
        stream=False, usage_shown="none", fields={},
    )  # fmt: skip


def parse_call(kind: Kind, raw: bytes, limits: BodyLimits) -> Call:
    """OpenAI's shape of a request body, every field checked. Raises InvalidRequest naming the first that is wrong."""
    body = read_object(raw, limits)
    call = empty_call(kind, body.pop("model", None))
    options: dict[str, bool] = {}
    for name, value in body.items():
        if value is None:
            continue  # clients send null for what was not given
        if name == "stream_options":
            options = fields.stream_options(name, value)
        elif not _take_content(call, name, value, limits) and not _take_option(call, name, value):
            fields.check_neutral(name, value)
    check_combinations(call, options, limits)
    if options.get("include_usage"):
        call.usage_shown = "continuous" if options.get("continuous_usage_stats") else "final"
    return call


def check_combinations(call: Call, options: dict[str, bool], limits: BodyLimits) -> None:
    """Check fields that require or exclude one another. ``options`` are the stream options."""
    if call.tools is None and call.fields.get("tool_choice") in ("auto", "none"):
        del call.fields["tool_choice"]  # an engine refuses it without tools
    if (call.messages is None) == (call.prompts is None):
        raise _without_content(call)
    if call.prompts is not None and len(call.prompts) * call.n > SEQUENCES_MAX:
        raise invalid("prompt", f"at most {SEQUENCES_MAX // call.n} strings with `n` {call.n}")
    if call.n > 1 and call.fields.get("temperature", 1) < _GREEDY:
        raise invalid("n", "1 where `temperature` is 0, since all answers would be the same")
    if any(options.values()) and not call.stream:
        raise invalid("stream_options", "absent unless `stream` is true")
    if call.fields.get("top_logprobs") and not call.fields.get("logprobs"):
        raise invalid("top_logprobs", "absent unless `logprobs` is true")
    if "tool_choice" in call.fields and call.tools is None:
        raise invalid("tool_choice", "absent unless `tools` is given")
    if call.tools is not None and len(_ENCODER.encode(call.tools)) > limits.tools_max_bytes:
        raise tool_schemas.too_complex("tools", f"all tools together are larger than {limits.tools_max_bytes} bytes")
    choice = call.fields.get("tool_choice")
    if isinstance(choice, dict) and choice["function"]["name"] not in {
        tool["function"]["name"] for tool in call.tools or ()
    }:
        raise invalid(call.paths.chosen_tool, "the name of a function in `tools`")


def answer_form(call: Call) -> dict[str, Any] | None:
    """The form of an answer in JSON. None for text, and where a tool has to be called."""
    form = call.fields.get("response_format", {"type": "text"})
    is_forced = call.tools is not None and call.fields.get("tool_choice", "auto") not in ("none", "auto")
    if form["type"] == "text" or is_forced:
        return None
    return tool_schemas.json_form(form["json_schema"]["schema"] if "json_schema" in form else {"type": "object"})


def engine_body(call: Call, *, model: str, max_tokens: int, cache_salt: str) -> bytes:
    """The body for an engine: the engine's name for the model, the reserved ceiling, the salt, and usage in every
    chunk.
    """
    body: dict[str, Any] = {**call.fields, "model": model, "max_tokens": max_tokens, "cache_salt": cache_salt}
    if body.pop("response_format", None) and (form := answer_form(call)) is not None:
        body["response_format"] = {"type": "structural_tag", "format": form}
    if call.messages is not None:
        body["messages"] = call.messages
    elif call.prompts is not None:
        body["prompt"] = call.prompts if len(call.prompts) > 1 else call.prompts[0]
    if call.tools is not None:
        body["tools"] = call.tools
        body.setdefault("tool_choice", "auto")
    if call.n > 1:
        body["n"] = call.n
    if call.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    return _ENCODER.encode(body)


def check_vocabulary(call: Call, vocab_size: int) -> None:
    """``logit_bias`` may only name tokens the model has. Raises InvalidRequest."""
    for token in call.fields.get("logit_bias", ()):
        if int(token) >= vocab_size:
            raise invalid(f"logit_bias.{token}", f"a token id below {vocab_size}")


def _take_content(call: Call, name: str, value: Any, limits: BodyLimits) -> bool:
    """The fields that hold text and structure; False where ``name`` is not one of them at this endpoint."""
    match name:
        case "messages" if call.kind != "completion":
            call.messages = messages.check_messages(name, value, messages_max=limits.messages_max)
        case "prompt" if call.kind != "chat":
            call.prompts = fields.prompts(name, value)
        case "chat_template_kwargs" if call.kind != "completion":
            call.fields[name] = fields.template_options(name, value)
        case "tools" if call.kind != "completion":
            call.tools = tool_schemas.check_tools(name, value) or None
        case "tool_choice" if call.kind == "chat":
            call.fields[name] = tool_schemas.check_tool_choice(name, value)
        case "parallel_tool_calls" if call.kind == "chat":
            call.fields[name] = fields.boolean(name, value)
        case "response_format" if call.kind == "chat":
            call.fields[name] = tool_schemas.check_response_format(name, value)
        case _:
            return False
    return True


def _take_option(call: Call, name: str, value: Any) -> bool:
    """The scalar fields; False where ``name`` is not one of them at this endpoint."""
    if call.kind == "tokenize":
        return False
    if check := fields.SAMPLING.get(name):
        call.fields[name] = check(name, value)
        return True
    match name:
        case "max_tokens":
            _take_max_tokens(call, name, value)
        case "max_completion_tokens" if call.kind == "chat":
            _take_max_tokens(call, name, value)
        case "n":
            call.n = _n(name, value)
        case "stream" | "allow_fallback":
            setattr(call, name, fields.boolean(name, value))
        case "user" | "prompt_cache_key":
            _take_session(call, name, value)
        case "service_tier":
            call.service_tier = fields.service_tier(name, value)
        case "logprobs":
            call.fields[name] = fields.boolean(name, value) if call.kind == "chat" else _logprobs(name, value)
        case "top_logprobs" if call.kind == "chat":
            call.fields[name] = _logprobs(name, value)
        case "add_special_tokens":
            return value is (call.kind == "completion")  # what each endpoint does without it
        case _:
            return name in fields.IGNORED
    return True


def _take_max_tokens(call: Call, name: str, value: Any) -> None:
    """The smaller one counts where both are given."""
    count = _count(name, value)
    if call.max_tokens is None or count < call.max_tokens:
        call.max_tokens, call.max_tokens_param = count, name


def _take_session(call: Call, name: str, value: Any) -> None:
    """A person before a prompt: whole applications may share one cache key."""
    session = fields.text(name, value, chars_max=fields.SESSION_CHARS_MAX)
    call.session = session or call.session if name == "user" else call.session or session


def _without_content(call: Call) -> InvalidRequest:
    if call.kind == "tokenize":
        both = call.messages is not None
        return invalid("messages", "given without `prompt`" if both else "given, or `prompt` instead")
    return (
        invalid("messages", "a list of messages")
        if call.kind == "chat"
        else invalid("prompt", "a string or a list of strings")
    )
