"""Puts a whole answer together from the events of a stream: providers are always asked for a stream, so that one that
hangs or drips is noticed for whole answers too. Pure.
"""

from typing import Any, Final

import msgspec

from data_plane.gateway.api.sse import MALFORMED_EVENT, StreamBroken

_EVENT: Final = b"data: "
_encode: Final = msgspec.json.encode


class WholeAnswer:
    """One choice. Of an answer that is ``too_large`` nothing is kept."""

    def __init__(self, *, bytes_max: int) -> None:
        self.too_large = False
        self._bytes_left = bytes_max
        self._created = 0
        self._texts: dict[str, list[str]] = {"content": [], "reasoning": []}
        self._calls: dict[int, tuple[dict[str, Any], list[str]]] = {}
        self._logprobs: list[Any] = []
        self._ended: dict[str, Any] = {"finish_reason": "stop"}

    def add(self, events: bytes) -> None:
        """Add whole events. Raises StreamBroken."""
        try:
            for event in events.split(b"\n\n"):
                chunk = msgspec.json.decode(event.removeprefix(_EVENT), type=dict[str, Any]) if event else {}
                self._created = chunk.get("created", self._created)
                for choice in chunk.get("choices", ()):
                    self._add(choice)
        except MALFORMED_EVENT as error:
            raise StreamBroken("malformed event of a provider") from error

    def _add(self, choice: dict[str, Any]) -> None:
        if self.too_large:
            return
        delta = choice["delta"]
        for name, pieces in self._texts.items():
            self._keep(pieces, delta.get(name) or "")
        for call in delta.get("tool_calls", ()):
            at = call.get("index", len(self._calls) if "id" in call else len(self._calls) - 1)
            if at not in self._calls:
                self._calls[at] = {"id": call["id"], "type": "function", "name": call["function"]["name"]}, []
                self._bytes_left -= len(_encode(call))
            self._keep(self._calls[at][1], call["function"]["arguments"])
        if (logprobs := choice.get("logprobs")) and logprobs["content"]:
            self._bytes_left -= len(_encode(logprobs["content"]))
            self._logprobs += logprobs["content"]
        self._ended |= {name: choice[name] for name in ("finish_reason", "stop_reason") if choice.get(name)}
        if self._bytes_left < 0:
            self.too_large = True
            self._texts, self._calls, self._logprobs = {}, {}, []

    def _keep(self, pieces: list[str], piece: str) -> None:
        if piece:
            self._bytes_left -= len(piece.encode())
            pieces.append(piece)

    def encoded(self) -> bytes:
        """The answer as an engine would write it, except for its usage, which the meter has."""
        texts = {name: "".join(pieces) for name, pieces in self._texts.items() if pieces}
        message: dict[str, Any] = {"role": "assistant", "content": None, **texts}
        if self._calls:
            message["tool_calls"] = [
                {**call, "function": {"name": call.pop("name"), "arguments": "".join(pieces)}}
                for call, pieces in self._calls.values()
            ]
        logprobs = {"content": self._logprobs} if self._logprobs else None
        choice = {"index": 0, "message": message, "logprobs": logprobs, **self._ended}
        answer = {"object": "chat.completion", "created": self._created, "choices": [choice]}
        return _encode(answer | {"usage": dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 0)})
