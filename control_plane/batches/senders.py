"""Threads that each send one line at a time."""

import queue
import threading
from collections.abc import Callable

import structlog

from control_plane.batches.open_batch import LineTry
from control_plane.batches.sending import LineAnswer


class Senders:
    """At most ``most`` threads, which begin with the first lines. They are daemons, so a line that waits for its answer
    does not keep the process from ending: its answer is asked for again.
    """

    def __init__(self, send: Callable[[LineTry], LineAnswer], most: int) -> None:
        self._send = send
        self._most = most
        self._threads: list[threading.Thread] = []
        self._waiting: queue.SimpleQueue[LineTry] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[LineTry, LineAnswer]] = queue.SimpleQueue()
        self.running = 0

    def begin(self, line: LineTry) -> None:
        """Send a line in a thread. The caller keeps ``running`` below the number of threads."""
        self.running += 1
        if self.running > len(self._threads) and len(self._threads) < self._most:
            thread = threading.Thread(target=self._repeat, name="batch-line", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._waiting.put(line)

    def answers(self, wait_s: float) -> list[tuple[LineTry, LineAnswer]]:
        """The answers that have come, after a wait for the first one."""
        found: list[tuple[LineTry, LineAnswer]] = []
        try:
            found.append(self._answers.get(timeout=wait_s))
            while True:
                found.append(self._answers.get_nowait())
        except queue.Empty:
            self.running -= len(found)
            return found

    def _repeat(self) -> None:
        while True:
            line = self._waiting.get()
            try:
                answer = self._send(line)
            except Exception:  # noqa: BLE001 - a thread survives every defect, and the line is sent again
                structlog.get_logger().exception("line not sent", batch=line.batch.row.id, line=line.plan.line)
                answer = LineAnswer(0, b"")
            self._answers.put((line, answer))
