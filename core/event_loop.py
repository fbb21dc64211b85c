"""The event loop of the HTTP servers: uvloop, made to survive a lack of memory, or to end the process that cannot.

CPython 3.11 may spin without end, and without releasing its lock, when no memory is left for handling an exception
(``exception_unwind`` in ceval.c tries again and again to allocate one integer). No Python code runs then. So a timer of
the kernel's ends the process once it has used much CPU time without a turn of the loop, and its supervisor restarts it.

libuv stops watching a listening socket for good when the callback that accepts a connection fails, for example with a
MemoryError, and uvloop closes a server's handle when ``accept`` fails with ENOMEM. Such a process lives on, and each
new connection waits in the kernel's queue without end.
"""

import asyncio
import contextlib
import faulthandler
import os
import select
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import structlog
import uvloop

_log = structlog.get_logger()
_CHECK_S: Final = 0.5
_Listen = Callable[..., Awaitable[Any]]  # gives an asyncio.Server in all but its declared type


class EventLoop(uvloop.Loop):
    """uvloop with servers that check their accepting, and a limit on the CPU time between two turns of the loop. After
    it, SIGPROF prints the stacks of all threads and ends the process.

    For ``uvicorn.Config(loop="core.event_loop:EventLoop")``; one at a time in a process.
    """

    stuck_cpu_s = 10.0  # CPU time of all threads, so that a stopped process or a busy machine does not count
    turn_s = 1.0

    def run_forever(self) -> None:
        assert sys.__stderr__ is not None, "the stacks are printed there"
        faulthandler.register(signal.SIGPROF, file=sys.__stderr__, all_threads=True, chain=True)
        self._turned()
        try:
            super().run_forever()
        finally:
            self._next_turn.cancel()
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.unregister(signal.SIGPROF)

    def _turned(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, self.stuck_cpu_s)
        self._next_turn = self.call_later(self.turn_s, self._turned)

    async def create_server(  # type: ignore[override]  # all of uvloop's 16 options are passed on
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *arguments: Any, **options: Any
    ) -> "AcceptingServer":
        accepted = _Accepted(protocol_factory)
        listen: _Listen = super().create_server
        server = await listen(accepted.protocol, *arguments, **options)
        same = {name: options[name] for name in ("ssl", "backlog") if name in options}
        return AcceptingServer(server, accepted, partial(listen, accepted.protocol, **same))


class _Accepted:
    """Counts the connections that got a protocol, and remembers whether one failed to."""

    def __init__(self, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self.count, self.failed = 0, False
        self._protocol_factory = protocol_factory

    def protocol(self) -> asyncio.BaseProtocol:
        try:
            made = self._protocol_factory()
        except BaseException:
            self.failed = True
            raise
        self.count += 1
        return made


class AcceptingServer:
    """A server that listens again if a connection failed to get a protocol, or waited while none was accepted."""

    def __init__(self, server: Any, accepted: _Accepted, listen: _Listen) -> None:
        self._servers, self._accepted, self._listen = [server], accepted, listen
        self._listening = [socket.socket(fileno=os.dup(one.fileno())) for one in server.sockets]
        self._checks = asyncio.get_running_loop().create_task(self._check_forever())

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return tuple(self._listening)

    def close(self) -> None:
        """Stop accepting. Accepted connections go on."""
        self._checks.cancel()
        for one in (*self._servers, *self._listening):
            one.close()

    async def wait_closed(self) -> None:
        for server in self._servers:
            await server.wait_closed()

    async def _check_forever(self) -> None:
        waiting = select.poll()
        for one in self._listening:
            waiting.register(one, select.POLLIN)
        count_before: int | None = None  # of the last check, if a connection waited then
        while True:
            await asyncio.sleep(_CHECK_S)
            with contextlib.suppress(MemoryError, OSError):  # the next check tries again
                if self._accepted.failed:
                    await self._listen_again()
                elif not waiting.poll(0):
                    count_before = None
                elif count_before != self._accepted.count:
                    count_before = self._accepted.count
                else:
                    await self._listen_again()

    async def _listen_again(self) -> None:
        """Replace the servers. The waiting connections stay in the kernel's queue, so the new ones accept them."""
        before, self._servers = self._servers, [await self._listen(sock=one.dup()) for one in self._listening]
        self._accepted.failed = False
        for server in before:
            server.close()
        _log.error("listening_again", cause="connections waited and none was accepted, as after memory ran out")
