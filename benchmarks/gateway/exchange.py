"""The request and answer that every contender relays: the request body, the 31 events of the answer as bytes, and the
check that a caller received exactly these events.

After litellm-bench's streaming fixture. Sending and timing are elsewhere.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

MODEL: Final = "tiny-chat"
EVENTS: Final = 31
"""Events of one answer: the role, 27 pieces of content, the stop, the usage and [DONE]."""
DONE: Final = b"data: [DONE]\n\n"
_CONTENT_BYTES: Final = 8441
_LARGE_BYTES: Final = 8192
_SMALL: Final = (
    " The", " order", " größer", " 注文", " 🙂", "\n", ' "quoted"', " was", " zwölf", " двa", " ship", "ped", " on",
    " Friday", ",", " naïve", " once", " 東京", " more", " ½", " it", " back", "slash\\", " then", "\ttab",
)  # fmt: skip
_LARGE: Final = "x" * _LARGE_BYTES
_LAST: Final = "." * (_CONTENT_BYTES - _LARGE_BYTES - len("".join(_SMALL).encode()))
PIECES: Final = (*_SMALL[:13], _LARGE, *_SMALL[13:], _LAST)
"""The answer's content, event by event."""
TEXT: Final = "".join(PIECES)


def tick_pieces(ticks: int) -> tuple[str, ...]:
    """The content of a stream of so many equal pieces."""
    return (" tick",) * ticks


_SYSTEM: Final = "You answer the customers of an outdoor shop briefly and kindly. " * 4
_QUESTION: Final = "My parcel has not come yet; where are my boots, size 43? Größe und Farbe: 緑. Order: "
_NUMBER_CHARS: Final = 8
_DIGITS: Final = "αβγδεζηθικ"  # our tokenizers never merge these letters, so all numbers have the same token count


class Delta(msgspec.Struct):
    """A part of a message. A complete message has the same two members."""

    role: str | None = None
    content: str | None = None


class Choice(msgspec.Struct):
    """The only choice of a chunk or of a complete answer."""

    finish_reason: str | None = None
    delta: Delta = msgspec.field(default_factory=Delta)
    message: Delta = msgspec.field(default_factory=Delta)


class Usage(msgspec.Struct):
    """The token counts that an answer reports."""

    prompt_tokens: int
    completion_tokens: int


class Answer(msgspec.Struct):
    """A chunk, or a complete answer."""

    choices: list[Choice]
    usage: Usage | None = None


class Options(msgspec.Struct):
    """``stream_options``."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Request(msgspec.Struct):
    """The members of a request that the upstream reads."""

    model: str
    messages: list[dict[str, str]]
    max_tokens: int
    stream: bool = False
    stream_options: Options | None = None


_answer: Final = msgspec.json.Decoder(Answer)
_request: Final = msgspec.json.Decoder(Request)


def messages(number: int) -> list[dict[str, str]]:
    """The messages of request ``number``. Each number gives a new question that no cache holds, of the same length."""
    order = "".join(_DIGITS[int(digit)] for digit in f"{number:0{_NUMBER_CHARS}d}")
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _QUESTION + order}]


def request_body(number: int = 0, *, stream: bool, model: str = MODEL, max_tokens: int = 256) -> bytes:
    """The JSON body that a caller posts."""
    body: dict[str, object] = {"model": model, "messages": messages(number), "max_tokens": max_tokens, "temperature": 0}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(body)


def post(port: int, key: str, body: bytes) -> bytes:
    """The complete HTTP request, head and body."""
    head_of = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nauthorization: Bearer %b\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    return head_of % (port, key.encode(), len(body)) + body


def understood(body: bytes) -> Request:
    """Decode a request that the upstream received. Raises ValueError when a relay has changed it."""
    try:
        request = _request.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the request body cannot be decoded: {error}") from None
    asked = request.messages[-1].get("content", "") if request.messages else ""
    expected = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": asked}]
    if request.model != MODEL or request.messages != expected or asked[:-_NUMBER_CHARS] != _QUESTION:
        raise ValueError("the model or the messages differ from the request that was sent")
    if request.stream and not (request.stream_options and request.stream_options.include_usage):
        raise ValueError("the streamed request lacks stream_options.include_usage")
    return request


@dataclass(frozen=True)
class Script:
    """The upstream's answer to prompts of ``prompt_tokens``, encoded once. ``pieces`` are the contents in order."""

    prompt_tokens: int
    pieces: tuple[str, ...] = PIECES

    def usage(self, completion: int) -> bytes:
        """The first members of a usage object after ``completion`` tokens, without the closing brace."""
        total = self.prompt_tokens + completion
        return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d' % (self.prompt_tokens, total, completion)

    def tails(self, *, continuous: bool) -> list[bytes]:
        """Every event but [DONE], from its choices on, as vLLM writes them.

        With ``continuous`` each event carries the usage so far.
        """
        blank = b'"logprobs":null,"finish_reason":null}]'
        choices = [b'[{"index":0,"delta":{"role":"assistant","content":""},' + blank]
        choices += [
            b'[{"index":0,"delta":{"content":%b},%b' % (msgspec.json.encode(piece), blank) for piece in self.pieces
        ]
        choices.append(
            b'[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop","stop_reason":null}]'
        )
        counts = [min(index, len(self.pieces)) for index in range(len(choices))]
        tails = [
            each + (b',"usage":' + self.usage(count) + b"}}\n\n" if continuous else b"}\n\n")
            for each, count in zip(choices, counts, strict=True)
        ]
        details = b',"prompt_tokens_details":{"cached_tokens":0}}}\n\n'
        return [*tails, b'[],"usage":' + self.usage(len(self.pieces)) + details]

    def whole(self) -> bytes:
        """The complete answer without streaming, from its choices on."""
        message = msgspec.json.encode({"role": "assistant", "content": "".join(self.pieces)})
        choice = b'[{"index":0,"message":%b,"logprobs":null,"finish_reason":"stop","stop_reason":null}]' % message
        return choice + b',"usage":' + self.usage(len(self.pieces)) + b"}}"


def head(request_id: bytes, *, chunk: bool, model: bytes = MODEL.encode()) -> bytes:
    """The first bytes of a complete answer, or of each event (``chunk``), up to the choices."""
    kind = b"chat.completion.chunk" if chunk else b"chat.completion"
    start = b"data: " if chunk else b""
    return b'%b{"id":"chatcmpl-%b","object":"%b","created":1790000000,"model":"%b","choices":' % (
        start, request_id, kind, model,
    )  # fmt: skip


def check_stream(body: bytes, prompt_tokens: int, expected: tuple[str, ...] = PIECES) -> int:
    """Check a complete stream and return its number of events.

    Raises ValueError unless it has the role, every piece in order, the stop, one usage and the end.
    """
    events = body.split(b"\n\n")
    if len(events) < 3 or events[-1] or events[-2] != b"data: [DONE]":
        raise ValueError(f"the stream does not end in [DONE]: {body[-200:]!r}")
    pieces: list[str] = []
    reasons: list[str] = []
    roles: list[str] = []
    usages: list[Usage] = []
    for event in events[:-2]:
        if not event.startswith(b"data: "):
            raise ValueError(f"an event does not start with 'data: ': {event[:200]!r}")
        chunk = _decoded(event[6:])
        if chunk.usage is not None:
            usages.append(chunk.usage)
        for choice in chunk.choices:
            if choice.delta.role:
                roles.append(choice.delta.role)
            if choice.delta.content:
                pieces.append(choice.delta.content)
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
    if tuple(pieces) != expected or reasons != ["stop"] or "assistant" not in roles:
        raise ValueError(f"the answer differs: {len(pieces)} pieces, roles {roles[:2]}, finish reasons {reasons}")
    if usages != [Usage(prompt_tokens, len(expected))]:
        raise ValueError(f"the usage differs: {usages[:2]}")
    return len(events) - 1


def check_whole(body: bytes, prompt_tokens: int) -> int:
    """Check a complete answer and return 1. Raises ValueError unless it is the one that was sent."""
    answer = _decoded(body)
    if answer.choices[0].message.content != TEXT or answer.choices[0].finish_reason != "stop":
        raise ValueError("the answer differs from the one that was sent")
    if answer.usage != Usage(prompt_tokens, len(PIECES)):
        raise ValueError(f"the usage differs: {answer.usage}")
    return 1


def _decoded(raw: bytes) -> Answer:
    try:
        return _answer.decode(raw)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the answer cannot be decoded: {error}: {raw[:200]!r}") from None
