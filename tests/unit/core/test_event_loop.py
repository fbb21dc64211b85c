"""A server that failed to accept a connection accepts later ones. A loop that no longer turns ends its process."""

import asyncio
import signal
import socket
import subprocess
import sys
from typing import cast

import pytest

from core.event_loop import EventLoop

_WAIT_S = 20  # of the whole test: the server listens again within about a second


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def _echoed(address: tuple[str, int], sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sent)
    received = await reader.read(len(sent))
    writer.close()
    return received


async def _echoed_in_the_end(address: tuple[str, int]) -> bytes:
    """Connections that were lost with the memory are reset; a caller tries again."""
    while True:
        try:
            if received := await _echoed(address, b"served"):
                return received
        except OSError:
            continue


def test_listening_again_keeps_the_socket_and_the_running_connections() -> None:
    async def scenario() -> None:
        listening, failing = socket.create_server(("127.0.0.1", 0)), [False]
        address = listening.getsockname()

        def made() -> asyncio.Protocol:
            if failing[0]:
                failing[0] = False
                raise MemoryError
            return _Echo()

        server = await asyncio.get_running_loop().create_server(made, sock=listening, backlog=64)
        reader, writer = await asyncio.open_connection(*address)
        failing[0] = True
        assert await asyncio.wait_for(_echoed_in_the_end(address), _WAIT_S) == b"served"
        writer.write(b"running")
        assert await reader.readexactly(7) == b"running"
        writer.close()
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(scenario())


def test_a_server_listens_again_when_its_socket_was_closed_behind_its_back() -> None:
    async def scenario() -> None:
        server = await asyncio.get_running_loop().create_server(_Echo, host="127.0.0.1", port=0)
        address = server.sockets[0].getsockname()
        server._servers[0].close()  # type: ignore[attr-defined]  # as uvloop does when the kernel has no memory for a connection
        assert await asyncio.wait_for(_echoed_in_the_end(address), _WAIT_S) == b"served"
        server.close()
        await server.wait_closed()

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(scenario())


_LIMITED = """
import asyncio, time
from core.event_loop import EventLoop

class Limited(EventLoop):
    stuck_cpu_s, turn_s = 0.3, 0.05

def work_for(cpu_s):
    until = time.process_time() + cpu_s
    while time.process_time() < until:
        sum(range(10_000))

async def main():
{main}

with asyncio.Runner(loop_factory=Limited) as runner:
    runner.run(main())
"""


def _run(main: str) -> subprocess.CompletedProcess[str]:
    script = _LIMITED.format(main=main)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)


def test_a_process_whose_loop_spins_in_c_prints_its_stacks_and_ends() -> None:
    ended = _run("    sum(range(10**15))  # no Python code runs meanwhile, so no signal handler of Python's could")
    assert ended.returncode == -signal.SIGPROF
    assert "in main" in ended.stderr


def test_a_process_whose_loop_turns_may_use_any_cpu_time() -> None:
    ended = _run("    for _ in range(5):\n        work_for(0.12)\n        await asyncio.sleep(0.06)")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_process_may_use_any_cpu_time_after_its_loop_ended() -> None:
    script = _LIMITED.format(main="    pass") + "\nwork_for(0.5)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
