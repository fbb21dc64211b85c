"""One replica as an actor of Ray Serve. The actor starts the replica's own process and ends with it; no request passes
through Ray.

Serve gives a deployment up after a few failed constructors, so this one never fails: it starts the replica again after
a pause until it is ready. A replica that ends later is replaced by Serve.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from tenora.stack.program import answers, free_port

_PR_SET_PDEATHSIG: Final = 1
_POLL_S: Final = 0.25
_PAUSE_FIRST_S: Final = 1.0
_PAUSE_MAX_S: Final = 60.0
_libc: Final = ctypes.CDLL(None, use_errno=True)
_log: Final = logging.getLogger("ray.serve")


class RayReplica:
    """A copy of a pool revision. ``environment`` is what the revision sets; secrets and addresses are those of the
    node, which this process inherits.
    """

    async def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:  # type: ignore[misc]
        """Returns when the engine has generated a token, or when the copy is to stop."""
        import ray
        from ray import serve

        self._command = command
        self._environment = {
            "TENORA_ENGINE_HOST": ray.util.get_node_ip_address(),
            **os.environ,
            **environment,
            "TENORA_REPLICA_COPY": serve.get_replica_context().replica_id.unique_id,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = asyncio.Event()
        pause_s = _PAUSE_FIRST_S
        while not await self._start():
            _log.warning("replica ended at its start; the next start comes in %g s", pause_s)
            if await self._stops_within(pause_s):
                return
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _start(self) -> bool:
        """Start the process and wait until it is ready. False when it has ended."""
        metrics_port = free_port()
        process = self._process = subprocess.Popen(  # noqa: ASYNC220 - in this thread, with which the kernel ends it
            self._command,
            env={
                **self._environment,
                "TENORA_METRICS_PORT": str(metrics_port),
                "TENORA_ENGINE_PORT": str(free_port({metrics_port})),
            },
            stdin=subprocess.DEVNULL,
            preexec_fn=_end_with_this_thread,  # noqa: PLW1509 - the child only makes one system call before exec
        )
        while process.poll() is None:
            # A cordoned replica drains from its start on: another start would not help.
            url = f"http://127.0.0.1:{metrics_port}/readyz"
            if await asyncio.to_thread(answers, url, accepted_error="it is draining"):
                return True
            if await self._stops_within(_POLL_S):
                return True
        return False

    async def _stops_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self._stopping.wait(), seconds)
        return False

    def check_health(self) -> None:
        """Raises RuntimeError when the replica has ended, so that Serve starts another copy."""
        assert self._process is not None, "the constructor has started it"
        if (status := self._process.poll()) is not None:
            raise RuntimeError(f"the replica ended with status {status}; its log says why")

    async def __del__(self) -> None:
        """Serve calls and awaits this to stop a copy: it drains. Serve bounds the wait."""
        self._stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(self._process.wait)


def _end_with_this_thread() -> None:
    """The kernel kills the child with the actor's thread. A drain would run beside the copy that takes its place."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
