"""What a gateway does between SIGTERM and its drain: it is not ready, and still accepts requests.

A load balancer sees that on ``/readyz`` and sends requests to other gateways, before this one stops accepting
them. The drain itself is uvicorn's.
"""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class DrainNotice:
    """The notice of one process. A second SIGTERM, or a SIGINT, ends it: the drain begins at once."""

    def __init__(self, notice_s: float) -> None:
        self.given = False
        self._notice_s = notice_s

    @contextmanager
    def on_sigterm(self) -> Iterator[None]:
        """Put the notice before the server's handler of SIGTERM. Call it in the event loop of the main thread."""
        loop, drain = asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM)
        assert callable(drain), "uvicorn sets its handlers before the application starts"

        def give_notice(number: int, frame: FrameType | None) -> None:
            again, self.given = self.given, True
            if again or not self._notice_s:
                drain(number, frame)
            else:
                loop.call_soon_threadsafe(loop.call_later, self._notice_s, drain, number, None)

        signal.signal(signal.SIGTERM, give_notice)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, drain)
