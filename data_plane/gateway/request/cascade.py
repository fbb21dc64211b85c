"""A cascade: the first member of a group answers, and the last one where that answer is not good enough.

The first answer is held back until it is judged: a whole answer, or the first tokens of a stream. To its attempt
``HeldClient`` is a client like any other. A stream that is not kept ends as if its caller had hung up.
"""

import dataclasses
import math
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from core.errors import AppError, BadGateway, Unavailable
from data_plane.gateway import metrics
from data_plane.gateway.api.client_connection import CLIENT_GONE, Client
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.api.openai_request import Call, answer_form
from data_plane.gateway.api.sse import DONE
from data_plane.gateway.errors import Headers
from data_plane.gateway.request.preparation import Preparation
from data_plane.gateway.routing.router import REASON_AFTER

HELD_TOKENS_MAX: Final = 16
"""Tokens of a stream that are held back at most, to judge them."""

_REFUSAL: Final = re.compile(
    r"\W*(?:i'm sorry|i am sorry|sorry, (?:but )?i|i can(?:no|')t|i am unable|i'm unable|i'm not able|as an ai\b"
    r"|unfortunately, i)",
    re.IGNORECASE,
)
_NEWEST: Final = 1 / 50  # weight of the newest answer in a group's share
_TRIED_ONE_IN: Final = 20
_PREFIX: Final = b"data: "

Serve = Callable[[InferenceRequest, Client], Awaitable[None]]
Verdict = Literal["kept", "unsure", "refusal", "schema", "failed"]


class Cascades:
    """Serves requests whose first answer may be replaced. ``serve_one`` serves by the request's member, ``serve_any``
    also by those of its route that follow.
    """

    def __init__(self, preparation: Preparation, serve_one: Serve, serve_any: Serve) -> None:
        self._preparation = preparation
        self._serve_one = serve_one
        self._serve_any = serve_any
        self._shares = EscalationShares()

    async def serve(self, request: InferenceRequest, client: Client) -> None:
        """Serve by the group's first member, and by the last where the first one's answer is not kept. Both are
        requests of their own, admitted and settled one after the other; the second names the first.
        """
        route, first = request.route, request.target.shown_name
        assert route is not None, "it is a member of a group"
        group = f"{request.tenant_id}/{route.group.name}"
        better = await self._preparation.next_member(request, client, "bounded", rest=(first,))
        if better is None or not self._shares.may_try(group, percent_max=route.group.escalations_percent_max):
            await self._serve_any(better or request, client)
            return
        held = HeldClient(client, request.call, threshold_percent=route.group.threshold_percent)
        try:
            await self._serve_one(_judged(request), held)
        except AppError as error:
            if client.started or not _another_may(error):
                raise
            held.answer.verdict = "failed"
        if held.is_gone:
            client.status = client.status or CLIENT_GONE
            return
        verdict = held.answer.verdict
        self._shares.judged(group, escalated=verdict != "kept")
        if verdict in ("kept", None):
            return
        metrics.ESCALATIONS.labels(verdict).inc()
        rest = route.rest if verdict == "failed" or held.whole else (*route.rest, first)
        second = await self._preparation.next_member(_with_rest(request, rest), client, "escalated", is_new=True)
        try:
            if second is None:
                raise Unavailable("The group's last member is gone; try again.", code="no_replica", retry_after_s=1)
            await self._serve_any(second, client)
        except AppError:
            if client.started or not held.whole:
                raise
            await held.show()


class EscalationShares:
    """For each group, the share of first answers that were replaced, among about the last 50. Above the group's bound
    one request in 20 still tries the first member, so that the share can fall again. Of more than ``groups_max`` groups
    the longest unused is forgotten.
    """

    def __init__(self, *, groups_max: int = 10_000) -> None:
        self._groups_max = groups_max
        self._groups: OrderedDict[str, tuple[float, int]] = OrderedDict()  # the share, and how many passed since

    def may_try(self, group: str, *, percent_max: int) -> bool:
        """Whether the next request of a group tries the first member."""
        share, passed = self._groups.get(group, (0.0, 0))
        if share * 100 <= percent_max:
            return True
        self._set(group, share, passed + 1)
        return (passed + 1) % _TRIED_ONE_IN == 0

    def judged(self, group: str, *, escalated: bool) -> None:
        """An answer of a group's first member was kept, or replaced."""
        share, passed = self._groups.get(group, (0.0, 0))
        self._set(group, share + (escalated - share) * _NEWEST, passed)

    def _set(self, group: str, share: float, passed: int) -> None:
        self._groups[group] = share, passed
        self._groups.move_to_end(group)
        if len(self._groups) > self._groups_max:
            self._groups.popitem(last=False)


class JudgedAnswer:
    """What has arrived of a first answer, and whether it is kept: None until it is judged. ``threshold_percent`` is the
    least geometric mean of its tokens' probabilities, which say how sure the model was of its words; ``is_json`` says
    that JSON was asked for.
    """

    def __init__(self, *, threshold_percent: int, is_json: bool) -> None:
        self.verdict: Verdict | None = None
        self._threshold_percent = threshold_percent
        self._is_json = is_json
        self._text = ""
        self._logprobs: list[float] = []
        self._pieces = 0

    def add(self, choices: Iterable[Mapping[str, Any]]) -> None:
        """The choices of a whole answer, or of one event of a stream."""
        for choice in choices:
            part = choice.get("delta") or choice.get("message") or {}
            self._text += part.get("content") or ""
            self._pieces += bool(part.get("content") or part.get("tool_calls"))
            for token in (choice.get("logprobs") or {}).get("content") or ():
                if isinstance(logprob := token.get("logprob"), int | float):
                    self._logprobs.append(logprob)

    @property
    def tokens(self) -> int:
        """Tokens so far, at least: an engine may send several in one event, and may report no log-probabilities."""
        return max(len(self._logprobs), self._pieces)

    def judge(self, *, is_whole: bool) -> Verdict:
        """Decide the verdict. Only a whole answer shows whether it is the JSON that was asked for."""
        self.verdict = "kept"
        if _REFUSAL.match(self._text.replace("’", "'")):
            self.verdict = "refusal"
        elif self._logprobs and math.exp(sum(self._logprobs) / len(self._logprobs)) * 100 < self._threshold_percent:
            self.verdict = "unsure"
        elif self._is_json and is_whole and not _is_json(self._text):
            self.verdict = "schema"
        return self.verdict


class HeldClient(Client):
    """The client of one first answer. ``whole`` is the answer where it is not kept, but all of it is here and can still
    be shown. ``is_gone``: the caller hung up. The caller did not ask for the log-probabilities by which the answer is
    judged, unless ``call`` says so.
    """

    def __init__(self, client: Client, call: Call, *, threshold_percent: int) -> None:
        self.started, self.status, self.recording = False, 0, None
        self.phases, self.request_headers, self.line = client.phases, client.request_headers, client.line
        self.answer = JudgedAnswer(threshold_percent=threshold_percent, is_json=answer_form(call) is not None)
        self.whole = b""
        self.is_gone = False
        self._client = client
        self._shows_logprobs = bool(call.fields.get("logprobs"))
        self._held = b""
        self._headers: Headers = []
        self._hang_up: Callable[[], None] | None = None

    def watch(self, on_gone: Callable[[], None] | None) -> None:
        """Watch the caller, and remember how to end the attempt."""
        self._hang_up = on_gone
        self._client.watch(None if on_gone is None else self._on_gone)

    def _on_gone(self) -> None:
        self.is_gone = True
        if self._hang_up is not None:
            self._hang_up()

    def begin(self, headers: Headers, body: bytes) -> bool:
        """Hold the first piece of a stream."""
        self.started, self._headers = True, headers
        return self.push(body)

    def push(self, body: bytes) -> bool:
        """Hold a piece, judge the stream once enough has arrived, and pass on what is kept."""
        if self.answer.verdict == "kept":
            return self._client.push(self._shown_events(body))
        if self.answer.verdict is None:
            self._held += body
            for event in _events_of(body):
                self.answer.add(event["choices"])
            if self.answer.tokens >= HELD_TOKENS_MAX:
                if self.answer.judge(is_whole=False) == "kept":
                    return self._client.begin(self._headers, self._shown_events(self._held))
                if self._hang_up is not None:
                    self._hang_up()
        return True

    def rejects(self, ending: bytes, headers: Headers, error: AppError | None) -> bool:
        """Whether another member has to answer, now that the first one's answer has ended, or has failed with an error.
        None has to where the caller hung up, or may not call any longer.
        """
        if self.is_gone or (error is not None and not _another_may(error)):
            return False
        if self.answer.verdict is None and error is not None:
            self.answer.verdict = "failed"
        elif self.answer.verdict is None:
            if not self.started:
                self._held, self._headers = ending, headers
                self.answer.add(msgspec.json.decode(ending)["choices"])
            if self.answer.judge(is_whole=True) != "kept":
                self.whole = self._held
        return self.answer.verdict != "kept"

    async def show(self) -> None:
        """Send the whole answer although it was not kept: the other member has none."""
        if self.started:
            self._client.begin(self._headers, self._shown_events(self.whole))
            await self._client.finish(DONE)
        else:
            await self.deliver(self.whole, self._headers)

    async def deliver(self, answer: bytes, headers: Headers) -> None:
        """Send a whole answer."""
        shown = answer if self._shows_logprobs else _without_logprobs(msgspec.json.decode(answer))
        await self._client.deliver(shown, headers)

    async def finish(self, body: bytes) -> None:
        """End a stream that is kept."""
        if not self._client.started:
            self._client.begin(self._headers, self._shown_events(self._held))
        await self._client.finish(body)

    async def break_off(self, error: AppError) -> None:
        """End a stream with an error. Raises the error where nothing was sent yet."""
        if not self._client.started:
            raise error
        await self._client.break_off(error)

    @property
    def reads(self) -> bool:
        return self._client.reads

    async def drained(self) -> None:
        """Wait while the caller reads too slowly."""
        await self._client.drained()

    def cut(self) -> None:
        """Close the caller's connection."""
        self._client.cut()

    def _shown_events(self, body: bytes) -> bytes:
        if self._shows_logprobs:
            return body
        return b"".join(_PREFIX + _without_logprobs(event) + b"\n\n" for event in _events_of(body))


def _another_may(error: AppError) -> bool:
    """Whether the last member may answer where the first one failed so: it was away, or cannot hold the request, or its
    provider refuses it, perhaps for the log-probabilities that the caller did not ask for, or a line of a batch is sent
    again whose first call failed before.
    """
    passed_over = error.code in REASON_AFTER or error.code in ("request_ended", "request_refused")
    return passed_over or isinstance(error, Unavailable | BadGateway)


def _judged(request: InferenceRequest) -> InferenceRequest:
    """The first call: its engine also says how sure it is of each token, and no other member follows by itself."""
    call = dataclasses.replace(request.call, fields={**request.call.fields, "logprobs": True})
    return msgspec.structs.replace(_with_rest(request, ()), call=call)


def _with_rest(request: InferenceRequest, rest: tuple[str, ...]) -> InferenceRequest:
    assert request.route is not None, "it is a member of a group"
    return msgspec.structs.replace(request, route=msgspec.structs.replace(request.route, rest=rest))


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _events_of(body: bytes) -> list[dict[str, Any]]:
    """The events that the gateway has written for its caller."""
    return [msgspec.json.decode(event[len(_PREFIX) :]) for event in body.split(b"\n\n") if event]


def _without_logprobs(value: dict[str, Any]) -> bytes:
    for choice in value["choices"]:
        if "logprobs" in choice:
            choice["logprobs"] = None
    return msgspec.json.encode(value)
