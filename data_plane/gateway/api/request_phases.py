"""What is known of a request while it runs: its caller, its model, and when each phase began. The steps add to it.
The ``server-timing`` header, the access log, the request log and traces read it. It holds no text of a prompt or an
answer, but refers to the request, so nothing keeps it after the request.
"""

import re
import time
from typing import Final

from core.contracts.request_log import RequestDetails
from core.contracts.usage import UsageEvent
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.state.authenticate import Caller

_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}")


class RequestPhases:
    """The phases of one request. Times are monotonic seconds, durations milliseconds; None is not known, or not yet.
    ``attempts`` are the replicas that got the request, with when. ``event`` and ``details`` are those of its
    settlement, which carries its row of the request log. ``price_nanos`` is what its caller pays: for two calls where
    the first one's answer was replaced.
    """

    __slots__ = (
        "admitted_at", "arrived_at", "asked_at", "attempts", "caller", "details", "ended_at", "event", "first_text_at",
        "left_queue_at", "load_ms", "model", "price_nanos", "queued_at", "request", "settled_at", "trace_id",
    )  # fmt: skip

    def __init__(self) -> None:
        self.arrived_at = time.monotonic()
        self.caller: Caller | None = None
        self.model: str | None = None
        self.request: InferenceRequest | None = None
        self.asked_at: float | None = None  # admission
        self.queued_at: float | None = None
        self.left_queue_at: float | None = None  # for the last time
        self.admitted_at: float | None = None  # or refused
        self.attempts: list[tuple[str, float]] = []
        self.first_text_at: float | None = None  # of a stream
        self.ended_at: float | None = None  # on the replica
        self.settled_at: float | None = None
        self.load_ms: int | None = None
        self.event: UsageEvent | None = None
        self.details: RequestDetails | None = None
        self.price_nanos = 0
        self.trace_id: str | None = None

    def asked_for(self, model: str) -> None:
        """The model that the caller named, if that is a name: a caller may send a prompt by mistake."""
        self.model = model if _MODEL.fullmatch(model) else None

    @property
    def wait_ms(self) -> int | None:
        """Until admission had decided: the wait queue and the reservation."""
        if self.asked_at is None or self.admitted_at is None:
            return None
        return round((self.admitted_at - self.asked_at) * 1000)

    @property
    def prefill_ms(self) -> int | None:
        """From the replica to the first text of a stream, without the load of the adapter. None where an adapter's load
        was not reported, since nothing tells the two apart.
        """
        request = self.request
        if self.first_text_at is None or not self.attempts or request is None:
            return None
        if self.load_ms is None and request.adapter:
            return None
        return max(0, round((self.first_text_at - self.attempts[-1][1]) * 1000) - (self.load_ms or 0))

    def header(self) -> bytes:
        """The value of ``server-timing`` for an answer that begins now (https://www.w3.org/TR/server-timing/).
        ``engine`` is the whole time on the replica: a load is reported at the end, so a stream does not know its part.
        """
        now = time.monotonic()
        parts = b""
        if (wait_ms := self.wait_ms) is not None:
            parts = b"queue;dur=%d, " % wait_ms
        if self.load_ms is not None:
            parts += b"load;dur=%d, " % self.load_ms
        if (prefill_ms := self.prefill_ms) is not None:
            parts += b"prefill;dur=%d, " % prefill_ms
        elif self.attempts:
            parts += b"engine;dur=%d, " % round((now - self.attempts[-1][1]) * 1000)
        return parts + b"total;dur=%d" % round((now - self.arrived_at) * 1000)
