"""Sends one line to a gateway, as an ordinary request of the key that made its batch, and reads the answer."""

import time
from typing import Final, Literal, NamedTuple

import httpx
import msgspec

from control_plane.batches.lines import LinePlan
from control_plane.batches.open_batch import LineTry
from control_plane.batches.settings import BatchWorkerSettings
from core.line_credential import HEADER, LineCredential, sign_line

Verdict = Literal["completed", "failed", "again", "settled", "key", "batch", "model", "left"]
"""What follows from an answer: the line is completed or failed; it is sent ``again`` later; its id was ``settled`` and
needs another attempt number; its ``key`` may be dead, which the database knows; all other lines of the ``batch``, or of
the ``model``, would fail for the same reason; or it is ``left`` without a result, because its batch ends early.
"""

_CONNECT_S: Final = 5.0
_CREDENTIAL_S: Final = 300
_RETRY_S: Final = 1.0
_NO_ROOM: Final = frozenset({0, 429, 503})
_REPEATED: Final = frozenset({0, 408, 409, 429, 503})
_NOT_SENT: Final = "no_connection"
_UNREADABLE: Final = "invalid_answer"
_BY_STATUS: Final[dict[int, Verdict]] = {200: "completed", 401: "key", 403: "batch"}
_BY_CODE: Final[dict[tuple[int, str], Verdict]] = {
    (403, "tenant_suspended"): "key",
    (404, "model_not_found"): "model",
    (404, "unknown_url"): "batch",
    (409, "request_ended"): "settled",
    (409, "request_settled"): "settled",
}


class LineAnswer(NamedTuple):
    """The answer to a line. Status 0: there was none. ``final``: the gateway said that a retry cannot succeed.
    ``usage``: input, cached and output tokens, as far as the answer reports them.
    """

    status: int
    body: bytes
    code: str = ""
    message: str = ""
    retry_after_s: float = _RETRY_S
    final: bool = False
    usage: tuple[int, int, int] = 0, 0, 0
    price_nanos: int = 0

    @property
    def is_used_up(self) -> bool:
        """Whether a limit of the tenant or its key is used up, or held by requests that run and may use less."""
        return self.code == "insufficient_quota"

    @property
    def is_failure(self) -> bool:
        """Whether the line is sent again only some times: something broke, or a limit may be used up."""
        return self.is_used_up or (self.status >= 500 and self.status not in _REPEATED)

    @property
    def lacks_room(self) -> bool:
        """Whether fewer lines should run at once."""
        return self.status in _NO_ROOM and (self.is_used_up or not self.final)

    @property
    def was_refused(self) -> bool:
        """Whether the line surely did not run. A gateway that stops, or a proxy in front of one, may say 503 to a line
        that has begun.
        """
        return self.code == _NOT_SENT or (
            self.status in (401, 429, 503) and self.code not in ("gateway_stopping", _UNREADABLE)
        )


class GatewayClient:
    """Calls of one gateway address. Threads share it."""

    def __init__(self, settings: BatchWorkerSettings, pepper: bytes) -> None:
        self._pepper = pepper
        self._http = httpx.Client(
            base_url=settings.gateway_url,
            timeout=httpx.Timeout(settings.batch_answer_s, connect=_CONNECT_S),
            limits=httpx.Limits(
                max_connections=settings.batch_concurrency_max,
                max_keepalive_connections=settings.batch_concurrency_max,
            ),
            trust_env=False,
        )

    def send(self, line: LineTry) -> LineAnswer:
        """Send a line and wait for its answer. Never raises for what the gateway or the network does. The
        Idempotency-Key is the same for all attempts.
        """
        row = line.batch.row
        credential = LineCredential(line.batch.key_hash, line.request_id, line.is_paid, line.only_stored)
        headers = {
            HEADER: sign_line(credential, self._pepper, expires_at_s=int(time.time()) + _CREDENTIAL_S),
            "content-type": "application/json",
            "idempotency-key": f"{row.id}:{line.plan.line}",
            "x-tier": row.service_class,
        }
        try:
            answer = self._http.post(row.endpoint, content=line.body, headers=headers)
        except httpx.HTTPError as error:
            unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
            text = f"The gateway did not answer ({type(error).__name__})."
            return LineAnswer(0, b"", code=_NOT_SENT if unsent else "no_answer", message=text)
        return read_answer(answer.status_code, dict(answer.headers), answer.content)


class _Error(msgspec.Struct):
    code: str | None = None
    message: str = ""


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None


class _Body(msgspec.Struct):
    error: _Error | None = None
    usage: _Usage | None = None


def read_answer(status: int, headers: dict[str, str], body: bytes) -> LineAnswer:
    """An answer of the gateway. Header names are in lower case."""
    price, pause = headers.get("x-tenora-price-nanos", ""), headers.get("retry-after", "")
    try:
        found = msgspec.json.decode(body, type=_Body)
    except msgspec.MsgspecError:
        found = _Body()
    error = found.error or _Error(*((_UNREADABLE, "The gateway's answer cannot be read.") if status != 200 else ()))
    usage = found.usage or _Usage()
    details = usage.prompt_tokens_details or _CachedTokens()
    return LineAnswer(
        status,
        body,
        code=error.code or "",
        message=error.message,
        retry_after_s=max(_RETRY_S, float(pause)) if pause.isdecimal() else _RETRY_S,
        final=headers.get("x-should-retry") == "false",
        usage=(usage.prompt_tokens, details.cached_tokens or 0, usage.completion_tokens or 0),
        price_nanos=int(price) if price.isdecimal() else 0,
    )


def verdict(answer: LineAnswer, *, failures: int, failures_max: int) -> Verdict:
    """What follows from an answer to a line. ``failures`` are its answers for which ``is_failure`` is true, this one
    included.
    """
    status = answer.status
    if (found := _BY_CODE.get((status, answer.code)) or _BY_STATUS.get(status)) is not None:
        return found
    if answer.is_used_up:
        return "again" if failures < failures_max else "batch"
    if status in _REPEATED:
        return "failed" if answer.final else "again"
    return "again" if status >= 500 and failures < failures_max else "failed"


def verdict_of_stored(answer: LineAnswer) -> Verdict:
    """What follows from the answer to a line that was only asked for its stored answer."""
    if answer.status == 200:
        return "completed"
    return "again" if answer.status in _REPEATED and not answer.final else "left"


def answered_line(line: LineTry, answer: LineAnswer) -> bytes:
    """The line of the output or error file for an answer."""
    body = answer.body if answer.code != _UNREADABLE else b""
    if b"\n" in body:
        body = msgspec.json.format(body, indent=-1)
    error = None if answer.status == 200 else {"code": answer.code, "message": answer.message}
    response = {"status_code": answer.status, "request_id": line.request_id, "body": msgspec.Raw(body)}
    return _file_line(line.request_id, line.plan.custom_id, response if body else None, error)


def unanswered_line(batch_id: str, plan: LinePlan, code: str, message: str) -> bytes:
    """The line of the error file for a line that was not sent."""
    return _file_line(f"{batch_id}_{plan.line}", plan.custom_id, None, {"code": code, "message": message})


def _file_line(line_id: str, custom_id: str, response: object, error: object) -> bytes:
    return msgspec.json.encode({"id": line_id, "custom_id": custom_id, "response": response, "error": error}) + b"\n"
