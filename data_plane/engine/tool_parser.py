"""VLLM's parser for Hermes's tool calls, with a stream that costs time linear in its length.

vLLM's own parser (0.32, ``vllm/tool_parsers/hermes_tool_parser.py``) reads the whole text again at each token, on the
event loop that all requests of an engine share: 13 s of CPU time for 16,000 tokens of an adapter that writes calls
without end. It also reads a whole answer by other rules than a stream: a call without an end is content there.
``ToolCallReader`` reads both.
"""

from collections.abc import AsyncIterator
from typing import Any

from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.entrypoints.openai.chat_completion import serving
from vllm.renderers.chat_utils import make_tool_call_id
from vllm.tool_parsers.abstract_tool_parser import ToolParserManager
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

from core.contracts.json_output import JSON_SPACES_MAX
from data_plane.engine.tool_call_reader import Piece, ToolCallReader


def install() -> None:
    """Replace vLLM's parser and the reasons why its answers end, in this process."""
    ToolParserManager.register_module("hermes", module=HermesToolParser)
    chat = serving.OpenAIServingChat
    chat.chat_completion_full_generator = with_true_ends(chat.chat_completion_full_generator)
    serving.maybe_filter_parallel_tool_calls = stopped_inside(serving.maybe_filter_parallel_tool_calls)


class HermesToolParser(Hermes2ProToolParser):  # type: ignore[misc] # vLLM ships no types
    """Parses one answer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reader = ToolCallReader()

    def get_structural_tag(self, request: Any, **kwargs: Any) -> Any:
        """VLLM's grammar of the calls, with a bound on white space in their arguments."""
        tag = super().get_structural_tag(request, **kwargs)
        for call in () if tag is None else tag.format.tags:
            call.content.max_whitespace_cnt = JSON_SPACES_MAX
        return tag

    def extract_tool_calls(self, model_output: str, *_: Any, **__: Any) -> Any:
        """The content and the calls of a whole answer, as far as they are written."""
        content, pieces = ToolCallReader().read(model_output)
        calls: dict[int, FunctionCall] = {}
        for piece in pieces:
            if piece.name is not None:
                calls[piece.call] = FunctionCall(name=piece.name, arguments="")
            calls[piece.call].arguments += piece.arguments
        # Without ``tools_called``, vLLM shows the text of the answer, with the marks of calls in it.
        return ExtractedToolCallInformation(
            tools_called=True, tool_calls=[ToolCall(function=call) for call in calls.values()], content=content
        )

    def extract_tool_calls_streaming(self, _previous_text: str, current_text: str, *_: Any) -> Any:
        """The next delta, a ``DeltaMessage``; None while there is nothing to send."""
        content, pieces = self._reader.read(current_text)
        calls = [_delta(piece) for piece in pieces]
        return DeltaMessage(content=content or None, tool_calls=calls) if content or calls else None

    def get_remaining_unstreamed_args(self) -> str:
        """Nothing: what an answer has of its arguments is sent at once. vLLM would send ``{}`` for a call without."""
        return ""


def _delta(piece: Piece) -> Any:
    """OpenAI's SDK joins the arguments of all deltas, so each delta has some, if only an empty string."""
    call = {} if piece.name is None else {"type": "function", "id": make_tool_call_id()}
    name = {} if piece.name is None else {"name": piece.name}
    return DeltaToolCall(index=piece.call, function=DeltaFunctionCall(arguments=piece.arguments, **name), **call)


def with_true_ends(answer: Any) -> Any:
    """Give a whole answer the finish reason that vLLM gives its stream: ``tool_calls`` only if a call ended it."""

    async def answered(self: Any, request: Any, results: AsyncIterator[Any], *args: Any, **kw: Any) -> Any:
        ends: dict[int, str] = {}

        async def watched() -> AsyncIterator[Any]:
            async for result in results:
                ends.update((output.index, output.finish_reason) for output in result.outputs)
                yield result

        found = await answer(self, request, watched(), *args, **kw)
        for choice in getattr(found, "choices", ()):  # an error has none
            if choice.finish_reason == "tool_calls" and (ends[choice.index] != "stop" or not choice.message.tool_calls):
                choice.finish_reason = ends[choice.index]
        return found

    return answered


def stopped_inside(choice_filter: Any) -> Any:
    """Wrap the function that sees each choice of whole answers and streams: a stop string ended this answer, so its
    last call may be a part of one.
    """

    def filtered(choice: Any, request: Any) -> Any:
        if getattr(choice, "finish_reason", None) == "tool_calls" and isinstance(choice.stop_reason, str):
            choice.finish_reason = "stop"
        return choice_filter(choice, request)

    return filtered
