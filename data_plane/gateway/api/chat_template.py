"""A base model's chat template, and whether it shows tools to the model.

Templates render as in transformers (utils/chat_template_utils.py, 5.x), called as in vLLM (renderers/hf.py, 0.32).
Admins publish templates; callers cannot send one.
"""

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from core.contracts.routes import BaseModelRoute
from core.errors import InvalidRequest
from data_plane.gateway.api.openai_messages import parsed_arguments
from data_plane.gateway.api.openai_request import Call

_FINAL_MARK: Final = "CONTINUE_FINAL_MESSAGE_TAG "  # transformers' own, since a template may depend on the text
_PROBE: Final = "tenora_probe"
_PROBE_TOOL: Final = {"type": "function", "function": {"name": _PROBE, "parameters": {"type": "object"}}}
_PROBE_CHATS: Final = (
    [{"role": "user", "content": "x"}],
    [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}],
)


@lru_cache(maxsize=64)
def renders_tools(route: BaseModelRoute) -> bool:
    """Whether the template of a base model shows tools to the model."""
    try:
        template = ChatTemplate(route)
    except jinja2.TemplateError:
        return False
    for chat in _PROBE_CHATS:
        try:
            if _PROBE in template.render(chat, [_PROBE_TOOL]):
                return True
        except InvalidRequest:
            continue
    return False


def require_tools_rendered(route: BaseModelRoute, call: Call) -> None:
    """Refuse tools and calls of tools for a base model that would not see them. Raises InvalidRequest."""
    if call.messages is None:
        return
    shown = call.tools is not None and call.fields.get("tool_choice") != "none"
    called = [message for message in call.messages if "tool_calls" in message or message["role"] == "tool"]
    if (shown or called) and not renders_tools(route):
        raise InvalidRequest(
            f"The chat template of `{route.id}` does not show tools to the model. Remove tools and calls of tools, or "
            "choose a model with `capabilities.tools` in /v1/models.",
            code="tools_unsupported",
            param="tools" if shown else "messages",
        )


class GenerationBlocks(jinja2.ext.Extension):
    """``{% generation %}`` marks an assistant's output, for training. Here it renders its content."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - the engine's transformers uses local time too


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    """One base model's template. Safe to share between threads."""

    def __init__(self, route: BaseModelRoute) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._template = environment.from_string(route.chat_template)
        self._has_developer = '"developer"' in route.chat_template or "'developer'" in route.chat_template
        tokens = {"bos_token": route.bos_token, "eos_token": route.eos_token}
        self._special_tokens = {name: token for name, token in tokens.items() if token is not None}

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        *,
        continue_final_message: bool = False,
        **options: bool,
    ) -> str:
        """The prompt text of a chat, with the template's own ``options``. With ``continue_final_message`` it ends
        inside of the last message. Raises InvalidRequest if the template rejects the messages.
        """
        if not self._has_developer and "developer" in [message["role"] for message in messages]:
            messages = _with_one_system_message(messages)
        seen = [_as_template_sees(message) for message in messages]
        if not continue_final_message:
            return self._rendered(seen, tools, add_generation_prompt=True, **options)
        final = seen[-1]["content"]
        seen[-1] = {**seen[-1], "content": final + _FINAL_MARK}
        return _cut_at_mark(self._rendered(seen, tools, add_generation_prompt=False, **options), final)

    def _rendered(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, **options: bool) -> str:
        try:
            return self._template.render(
                messages=messages,
                tools=None if tools is None else [_as_engine_dumps(tool) for tool in tools],
                documents=None,
                **self._special_tokens,
                **options,
            )
        except (jinja2.TemplateError, TypeError, ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, jinja2.TemplateError) else "it cannot render them"
            raise InvalidRequest(
                f"This model's chat template refuses the messages: {reason[:200]}",
                code="invalid_value",
                param="messages",
            ) from None


def _cut_at_mark(rendered: str, final: str) -> str:
    """The text up to the end of the last message, which templates may strip. As in transformers."""
    at = rendered.rfind(_FINAL_MARK.strip())
    if at < 0 or final.strip() not in rendered:
        raise InvalidRequest(
            "This model's chat template cannot continue a message of the assistant; end with a message of the user.",
            code="invalid_value",
            param="messages",
        )
    before = rendered[:at]
    return before if rendered.startswith(_FINAL_MARK, at) else before.rstrip()


def _as_template_sees(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its tool calls' arguments as objects (vLLM, renderers/chat_utils.py, _postprocess_messages)."""
    if "tool_calls" not in message:
        return message
    return {**message, "tool_calls": [_with_parsed_arguments(call) for call in message["tool_calls"]]}


def _with_parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": parsed_arguments(function["arguments"])}}


def _with_one_system_message(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages for a template without the role of a developer, as vLLM makes them."""
    spoken = [message["content"] for message in messages if message["role"] in ("system", "developer")]
    others = [message for message in messages if message["role"] not in ("system", "developer")]
    return [{"role": "system", "content": "\n\n".join(filter(None, spoken))}, *others]


def _as_engine_dumps(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool as vLLM gives it to a template: members in its own order, and null for a missing one of three."""
    function = tool["function"]
    members = {name: function.get(name) for name in ("name", "description", "parameters")}
    return {"type": "function", "function": members | ({"strict": function["strict"]} if "strict" in function else {})}
