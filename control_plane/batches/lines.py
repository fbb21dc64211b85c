"""The lines of an input file: what is wrong with them, in which order they are sent, and the ids of their requests.
Pure functions over an open file.
"""

from collections.abc import Iterator
from typing import IO, Any, Final, NamedTuple

import msgspec

from control_plane.batches.schemas import LineErrorView
from control_plane.settings import BatchSettings
from core.ids import derived_id

PROBLEMS_MAX: Final = 100
_CUSTOM_ID_CHARS_MAX: Final = 512
_PREFIX_BYTES: Final = 256
_BYTES_PER_TOKEN: Final = 4
_MODEL_CHARS_MAX: Final = 256
_SHOWN_CHARS: Final = 64
_HOUR_MS: Final = 3_600_000
_EMBEDDINGS: Final = "/v1/embeddings"  # generate nothing
_ANSWERS_MAX: Final = 128
_TOKENS_MAX: Final = 1 << 48  # so that the sum over batches fits a bigint
_FIELDS: Final = frozenset({"custom_id", "method", "url", "body"})
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


class LinePlan(NamedTuple):
    """A good line: its number, where it lies in the file, and what its place in the order depends on."""

    line: int
    offset: int
    size: int
    model: str
    prefix: bytes
    custom_id: str


class CheckedLines(NamedTuple):
    """The good lines in the order of the file, the first problems, and the tokens that the lines may take."""

    plans: list[LinePlan]
    problems: list[LineErrorView]
    tokens: int


class _Sent(msgspec.Struct, frozen=True):
    """What is sent of a line: its body, unchanged."""

    body: msgspec.Raw


class _BadLine(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = None if param is None else param[:_SHOWN_CHARS].replace("\0", " ")  # Postgres stores no NUL


def check(file: IO[bytes], endpoint: str, settings: BatchSettings, *, output_tokens: int = 0) -> CheckedLines:
    """Read every line, up to one more than there may be. Empty lines are left out. ``output_tokens``: what a line may
    generate that does not ask for a number.
    """
    plans: list[LinePlan] = []
    problems: list[LineErrorView] = []
    seen: dict[str, int] = {}
    tokens = 0
    for line, offset, raw in _lines(file, settings.batch_line_bytes_max):
        if len(plans) + len(problems) >= settings.batch_lines_max:
            text = f"The file has more than {settings.batch_lines_max} lines. Split it into several batches."
            problems.append(LineErrorView(code="too_many_lines", line=line, message=text, param=None))
            break
        try:
            content = _content(raw, endpoint, settings.batch_line_bytes_max)
            _require_new(content["custom_id"], line, seen)
        except _BadLine as bad:
            text = f"Line {line}: {f'{bad.param}: ' if bad.param else ''}{bad}"
            problems.append(LineErrorView(code=bad.code, line=line, message=text, param=bad.param))
            if len(problems) >= PROBLEMS_MAX:
                break
            continue
        body: dict[str, Any] = content["body"]
        plans.append(LinePlan(line, offset, len(raw), body["model"], _prefix(body), content["custom_id"]))
        tokens += len(raw) // _BYTES_PER_TOKEN + (_generated(body, output_tokens) if endpoint != _EMBEDDINGS else 0)
    if not plans and not problems:
        text = "The file has no line. Write one request in each line."
        problems.append(LineErrorView(code="empty_file", line=None, message=text, param=None))
    return CheckedLines(plans, problems, min(tokens, _TOKENS_MAX))


def in_order(plans: list[LinePlan]) -> list[LinePlan]:
    """The order of sending: lines of one model, and in it of one beginning, follow each other, so that replicas load
    few adapters and reuse what they computed of a prompt.
    """
    return sorted(plans, key=lambda plan: (plan.model, plan.prefix, plan.line))


def body_of(file: IO[bytes], plan: LinePlan) -> bytes:
    """What is sent of a line."""
    file.seek(plan.offset)
    return bytes(msgspec.json.decode(file.read(plan.size), type=_Sent).body)


def request_id(batch_id: str, line: int, attempt: int, *, created_ms: int, now_ms: int) -> str:
    """The id of a line's request. It is the same for a whole hour of the batch, and tells the hour: what a gateway has
    settled in this hour is recognized, and its memory of an id ends only after an hour.
    """
    hour = max(0, now_ms - created_ms) // _HOUR_MS
    return derived_id("req", created_ms + hour * _HOUR_MS, batch_id, line, hour, attempt)


def _lines(file: IO[bytes], bytes_max: int) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of each line that is not empty. Of one that is too long only its beginning."""
    line, offset = 0, 0
    while raw := file.readline(bytes_max + 1):
        line += 1
        size = len(raw)
        while not raw.endswith(b"\n") and (more := file.readline(bytes_max)):
            size += len(more)
            if more.endswith(b"\n"):
                break
        if raw.strip():
            yield line, offset, raw
        offset += size


def _content(raw: bytes, endpoint: str, bytes_max: int) -> dict[str, Any]:
    """The fields of a good line. Raises _BadLine."""
    if len(raw) > bytes_max:
        raise _BadLine("line_too_large", f"it is larger than {bytes_max} bytes. Shorten it.")
    try:
        raw.decode()
        content = _decode(raw)
    except UnicodeDecodeError as error:
        raise _BadLine("invalid_utf8", f"byte {error.start} is not UTF-8. Write the file in UTF-8.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise _BadLine("invalid_json_line", f"it is not valid JSON: {error}.") from None
    if not isinstance(content, dict):
        raise _BadLine("invalid_json_line", "it is no JSON object. Write one request in each line.")
    if unknown := sorted(content.keys() - _FIELDS):
        raise _BadLine("unknown_field", "unknown field. Use custom_id, method, url and body.", unknown[0])
    custom_id = content.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _CUSTOM_ID_CHARS_MAX:
        text = f"must be a string of 1 to {_CUSTOM_ID_CHARS_MAX} characters."
        raise _BadLine("invalid_custom_id", text, "custom_id")
    if content.get("method", "POST") != "POST":
        raise _BadLine("invalid_method", "must be POST.", "method")
    if content.get("url") != endpoint:
        raise _BadLine("invalid_url", f"must be {endpoint}, the endpoint of the batch.", "url")
    body = content.get("body")
    if not isinstance(body, dict):
        raise _BadLine("invalid_body", "must be an object: the body of the request.", "body")
    model = body.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= _MODEL_CHARS_MAX or "\0" in model:
        raise _BadLine("missing_model", "must name a model.", "body.model")
    if body.get("stream"):
        raise _BadLine("stream_not_allowed", "a batch has no streams. Remove it.", "body.stream")
    return content


def _require_new(custom_id: str, line: int, seen: dict[str, int]) -> None:
    if (first := seen.setdefault(custom_id, line)) != line:
        raise _BadLine("duplicate_custom_id", f"line {first} has the same. Give each its own.", "custom_id")


def _prefix(body: dict[str, Any]) -> bytes:
    prompt = body.get("messages") or body.get("prompt") or body.get("input")
    return _encode(prompt)[:_PREFIX_BYTES]


def _generated(body: dict[str, Any], output_tokens: int) -> int:
    """The most that a request may generate: of each of its answers to each of its prompts what it asks for, else what
    the plan allows.
    """
    prompts, answers = body.get("prompt"), body.get("n")
    asked = body.get("max_completion_tokens") or body.get("max_tokens")
    several = isinstance(prompts, list) and bool(prompts) and not isinstance(prompts[0], int)
    return (
        (len(prompts) if isinstance(prompts, list) and several else 1)
        * (answers if isinstance(answers, int) and 0 < answers <= _ANSWERS_MAX else 1)
        * (asked if isinstance(asked, int) and 0 < asked < 1 << 31 else output_tokens)
    )
