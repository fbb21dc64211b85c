"""The engine as a child process of its agent: start, watch, stop. Its command line is in ``engine_command``."""

import asyncio
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_CPU_ENGINE_NICE: Final = 5  # it uses every core it gets, and a gateway on the same machine must still answer
_STOP_S: Final = 10


class EngineProcess:
    """One engine. ``device`` is "cpu" or "gpu"."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], *, device: str) -> None:
        libc = ctypes.CDLL(None)

        def prepare() -> None:
            # The kernel kills the engine with its agent: an engine that no agent watches must not serve.
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if device == "cpu":
                os.nice(_CPU_ENGINE_NICE)

        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            preexec_fn=prepare,  # noqa: PLW1509 - system calls before exec, nothing else
        )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    async def stop(self) -> None:
        """Terminate the process, and kill it if it does not end in time."""
        if not self.is_alive:
            return
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, _STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
