"""What is known of a request while it runs: its caller, its model, and how long each phase took. The steps add to it.
The ``server-timing`` header, the access log and the request log read it. It holds no text of a prompt or an answer.
"""

import re
import time
from typing import Final

from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.state.authenticate import Caller

_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}")


class RequestPhases:
    """The phases of one request. Times are monotonic seconds, durations milliseconds; None is not known, or not yet.
    ``settled`` says that the settlement carries its row of the request log.
    """

    __slots__ = (
        "arrived_at", "caller", "first_text_at", "load_ms", "model", "request", "sent_at", "settled", "wait_ms",
    )  # fmt: skip

    def __init__(self) -> None:
        self.arrived_at = time.monotonic()
        self.caller: Caller | None = None
        self.model: str | None = None
        self.request: InferenceRequest | None = None
        self.wait_ms: int | None = None
        self.sent_at: float | None = None  # to the replica of the last attempt
        self.first_text_at: float | None = None  # of a stream
        self.load_ms: int | None = None
        self.settled = False

    def asked_for(self, model: str) -> None:
        """The model that the caller named, if that is a name: a caller may send a prompt by mistake."""
        self.model = model if _MODEL.fullmatch(model) else None

    @property
    def prefill_ms(self) -> int | None:
        """From the replica to the first text of a stream, without the load of the adapter. None where an adapter's load
        was not reported, since nothing tells the two apart.
        """
        request = self.request
        if self.first_text_at is None or self.sent_at is None or request is None:
            return None
        if self.load_ms is None and request.adapter:
            return None
        return max(0, round((self.first_text_at - self.sent_at) * 1000) - (self.load_ms or 0))

    def header(self) -> bytes:
        """The value of ``server-timing`` for an answer that begins now (https://www.w3.org/TR/server-timing/).
        ``engine`` is the whole time on the replica: a load is reported at the end, so a stream does not know its part.
        """
        now = time.monotonic()
        parts = b""
        if self.wait_ms is not None:
            parts = b"queue;dur=%d, " % self.wait_ms
        if self.load_ms is not None:
            parts += b"load;dur=%d, " % self.load_ms
        if (prefill_ms := self.prefill_ms) is not None:
            parts += b"prefill;dur=%d, " % prefill_ms
        elif self.sent_at is not None:
            parts += b"engine;dur=%d, " % round((now - self.sent_at) * 1000)
        return parts + b"total;dur=%d" % round((now - self.arrived_at) * 1000)
