"""One program of the stack as a value: what to run, where its log goes, and how to tell that it is ready.

Starting a program is here; keeping it alive is ``tenora.stack.supervisor``.
"""

import contextlib
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_CLONE_NEWUSER: Final = 0x10000000
_PR_SET_PDEATHSIG: Final = 1
_NOBODY: Final = 65534
_FREE_PORTS: Final = range(12_000, 32_000)
_libc: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A command of the stack.

    ``needs`` names the programs that must be ready before it starts, ``after`` those whose own start it waits for,
    because two starts at once would delay each other. ``stop_s`` is the time limit for a graceful stop. A program that
    drains has up to ``drain_s`` when it alone is stopped; when all are, a second signal ends its drain after
    ``stop_s``. A program that ends starts again after a pause of up to ``backoff_max_s``. A program with ``once`` is a
    step: it is done when it exits with status 0, and it is not restarted. ``unprivileged`` hides root from programs
    that refuse to run as root. The program inherits this process's environment without ``withheld``; ``env`` comes on
    top.
    """

    name: str
    argv: tuple[str, ...]
    ready: Callable[[], bool]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    withheld: frozenset[str] = frozenset()
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    ready_s: float = 60
    backoff_max_s: float = 5
    stop_s: float = 15
    drain_s: float = 0
    stop_signal: signal.Signals = signal.SIGTERM
    once: bool = False
    unprivileged: bool = False

    def start(self) -> subprocess.Popen[bytes]:
        """Start the program in its own session. When the starting thread dies, the program gets ``stop_signal``."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        hide_root = self.unprivileged and os.geteuid() == 0
        uid, gid = os.geteuid(), os.getegid()
        inherited = {name: value for name, value in os.environ.items() if name not in self.withheld}

        def prepare() -> None:
            if hide_root:
                _become_nobody(uid, gid)
            _libc.prctl(_PR_SET_PDEATHSIG, self.stop_signal)  # last: a change of user clears it

        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.argv,
                env={**inherited, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=prepare,  # noqa: PLW1509 - the child only makes system calls before exec
            )


def _become_nobody(uid: int, gid: int) -> None:
    """Enter a user namespace that maps this user to the user ``nobody``.

    Files keep their owner and stay readable. A plain setuid could not read a home folder that only root may enter.
    """
    if _libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(
            ctypes.get_errno(), "user namespaces are not allowed here; run tenora as an ordinary user instead of root"
        )
    for file, text in (("setgroups", "deny"), ("uid_map", f"{_NOBODY} {uid} 1"), ("gid_map", f"{_NOBODY} {gid} 1")):
        Path("/proc/self", file).write_text(text)


def accepts_connections(port: int) -> bool:
    """Whether a process listens on this loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers(url: str, *, timeout_s: float = 2, accepted_error: str | None = None) -> bool:
    """Whether an HTTP GET of a loopback URL gives 200, or an error whose text is ``accepted_error``."""
    with contextlib.suppress(OSError):
        try:
            with urllib.request.urlopen(url, timeout=timeout_s) as response:  # noqa: S310 - our own loopback URLs
                return bool(response.status == 200)
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode(errors="replace").strip() == accepted_error
    return False


def free_port(besides: Collection[int] = ()) -> int:
    """A loopback port that is free now, and none of those ``besides``, whose servers may start later. It lies below
    those that the kernel gives to outgoing connections: one of these could take it before its server does. Raises
    OSError when a hundred ports in a row are taken.
    """
    for _ in range(100):
        port = secrets.choice(_FREE_PORTS)
        if port in besides:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"a hundred ports from {_FREE_PORTS.start} to {_FREE_PORTS.stop - 1} are taken")
