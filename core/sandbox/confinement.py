"""The command line of a confined child process, and what its kernel could not give it.

``core.sandbox.launcher`` drops the privileges and then becomes the command. Its system-call filter always holds; a
kernel without Landlock or network namespaces leaves the rest out, which the caller logs and counts.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from core.sandbox import launcher

LINE_BYTES_MAX: Final = 2000
_OPTIONAL_PROTECTIONS: Final = ("landlock", "network", "own-user")  # as the launcher's line names them
_ROOT: Final = Path(launcher.__file__).parents[2]  # of our packages


class ChildLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Hard limits of a child. ``cpu_s`` is None for a child that runs as long as its parent."""

    memory_bytes: int
    """Address space."""
    cpu_s: int | None
    file_bytes: int
    open_files: int


def confined_command(
    command: Sequence[str],
    *,
    packages: Sequence[str],
    readable: Sequence[Path] = (),
    writable: Sequence[Path] = (),
    limits: ChildLimits,
    user_id: int,
) -> list[str]:
    """``command``, to be started with ``child_environment``. It dies with the thread that starts it.

    Besides the system's libraries and our ``packages``, the command can only read ``readable`` and write ``writable``
    (where the kernel has Landlock). If this process is root, the command gets ``user_id``.
    """
    spec = {
        "parent": os.getpid(),
        "user_id": user_id,
        "readable": [str(path) for path in (*_code_folders(packages), *readable)],
        "writable": [str(path) for path in writable],
        "limits": msgspec.structs.asdict(limits),
    }
    # -B: a bytecode file that the child's file size limit cuts off would break every later start of this interpreter.
    return [sys.executable, "-I", "-B", "-S", str(Path(launcher.__file__)), json.dumps(spec), *command]


def child_environment(further: Mapping[str, str]) -> dict[str, str]:
    """All that a confined child knows of its environment: no secret of its parent."""
    return {"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", **further}


def missing_protections(line: bytes) -> list[str]:
    """The optional protections that the launcher's ``line``, the first on standard error, does not name.

    Empty for a child that ended before that line: it has opened no file.
    """
    said, _, held = line.decode(errors="replace").partition(": ")
    if said != "sandbox":
        return []
    wanted = _OPTIONAL_PROTECTIONS if os.geteuid() == 0 else _OPTIONAL_PROTECTIONS[:2]
    return [name for name in wanted if not any(word.startswith(name) for word in held.split())]


def _code_folders(packages: Sequence[str]) -> list[Path]:
    """The paths that Python needs: the interpreter, its libraries, the system's, and our packages."""
    return [
        Path(sys.prefix), Path(sys.base_prefix), _ROOT / "core", *(_ROOT / name for name in packages), Path("/usr"),
        Path("/lib"), Path("/lib64"), Path("/etc/ld.so.cache"), Path("/dev/null"), Path("/dev/urandom"),
    ]  # fmt: skip
