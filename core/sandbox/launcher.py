"""The launcher drops its privileges and then becomes another program. It is run by path and uses only the standard
library.

``python -I -S launcher.py '<spec as JSON>' <command>``. Resource limits, no new privileges and the system-call filter
must succeed, otherwise nothing starts (fails closed). Namespaces and Landlock depend on the kernel and its policy;
the launcher writes those that hold to standard error (fails open, visibly). ``core.sandbox.confinement`` writes the
command line.
"""

import ctypes
import errno
import json
import os
import platform
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS = (
    1,
    4,
    22,
    24,
    28,
    38,
)
_CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x08000000, 0x10000000, 0x40000000
_NOBODY: Final = 65534
_libc: Final = ctypes.CDLL(None, use_errno=True)

# Calls that start processes, reach other processes or talk to a network, by their numbers on x86-64 and AArch64.
_REFUSED_CALLS: Final[dict[str, tuple[int, ...]]] = {
    "x86_64": (
        41, 53, 49, 42,  # socket, socketpair, bind, connect
        56, 57, 58,  # clone, fork, vfork
        62, 200, 234, 129, 297, 434, 424, 438,  # kill, tkill, tgkill, rt_(tg)sigqueueinfo, pidfd_*
        101, 310, 311,  # ptrace, process_vm_readv, process_vm_writev
        165, 272, 308, 304,  # mount, unshare, setns, open_by_handle_at
        321, 323, 298, 250, 248, 249,  # bpf, userfaultfd, perf_event_open, keyctl, add_key, request_key
        425, 426, 427,  # io_uring, which would do the above unseen
    ),
    "aarch64": (
        198, 199, 200, 203, 220, 129, 130, 131, 138, 240, 434, 424, 438, 117, 270, 271,
        40, 97, 268, 265, 280, 282, 241, 219, 217, 218, 425, 426, 427,
    ),
}  # fmt: skip
_AUDIT_ARCHITECTURE: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE3: Final = 435  # answered "not implemented", so that libc tries clone, which is refused
_X32_BIT: Final = 0x40000000

_LANDLOCK_CREATE, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_READ: Final = 0b1101  # execute, read file, read directory
_LANDLOCK_FILE: Final = 0b0111  # execute, write and read file: the rights that a rule for a file may have
_LANDLOCK_BITS: Final = {1: 13, 2: 14, 3: 15, 4: 15}  # how many rights each version knows; 16 from version 5 on


def enter_namespaces(user_id: int, needed: list[str]) -> list[str]:
    """Enter an empty network namespace and drop root's capabilities. Returns what was achieved.

    Root becomes the user ``user_id``, unless that user cannot reach the ``needed`` paths, such as code in a home that
    only root may enter; then it drops its capabilities and keeps its id. In a user namespace either id appears as
    ``nobody``.
    """
    own_user = os.geteuid() == 0 and _act_as(user_id, needed)
    uid, gid = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC) == 0:
        try:
            for file, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{_NOBODY} {uid} 1"),
                ("gid_map", f"{_NOBODY} {gid} 1"),
            ):
                Path("/proc/self", file).write_text(text)
        except OSError:
            return ["network", "user-unmapped"]
        if own_user:
            _become(_NOBODY)
        return ["network", "user", *(["own-user"] if own_user else [])]
    if own_user:  # only root may have a network namespace without a user namespace
        os.seteuid(0)
    held = ["network"] if _libc.unshare(_CLONE_NEWNET | _CLONE_NEWIPC) == 0 else []
    if own_user:
        _become(user_id)
        held.append("own-user")
    elif uid == 0:
        for capability in range(64):
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
        _libc.prctl(_PR_SET_SECUREBITS, 0b11, 0, 0, 0)  # root's id gives no capabilities any more, for good
        held.append("no-capabilities")
    return held


def _act_as(user_id: int, needed: list[str]) -> bool:
    """Take the user's id temporarily. Undone when that user cannot reach everything needed."""
    os.setgroups([])
    os.setegid(user_id)
    os.seteuid(user_id)
    # Or the kernel would leave the files of /proc/self, which name the namespace's users, to root.
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "access to its own files")
    if all(os.access(path, os.R_OK, effective_ids=True) for path in needed):
        return True
    os.seteuid(0)
    os.setegid(0)
    return False


def _become(user_id: int) -> None:
    """Take the user's id for good: the saved ids change too, and root's capabilities are dropped."""
    os.setresgid(user_id, user_id, user_id)
    os.setresuid(user_id, user_id, user_id)


def set_limits(*, memory_bytes: int, cpu_s: int | None, file_bytes: int, open_files: int) -> None:
    """Hard limits: no process started from here can raise them. Without ``cpu_s`` the CPU time has none."""
    for kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, resource.RLIM_INFINITY if cpu_s is None else cpu_s),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))


def restrict_files(readable: list[str], writable: list[str]) -> list[str]:
    """Leave only these folders and files reachable, by Landlock (docs.kernel.org/userspace-api/landlock.html).

    Needs no_new_privs. Returns what was achieved: nothing on kernels without Landlock.
    """
    version = _libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return []
    every_right = (1 << _LANDLOCK_BITS.get(version, 16)) - 1
    ruleset = _libc.syscall(_LANDLOCK_CREATE, struct.pack("<Q", every_right), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return []
    for paths, rights in ((readable, _LANDLOCK_READ), (writable, every_right)):
        for path in filter(os.path.exists, paths):
            granted = rights if os.path.isdir(path) else rights & _LANDLOCK_FILE  # noqa: PTH112 - see the imports
            target = os.open(path, os.O_PATH | os.O_CLOEXEC)
            _libc.syscall(_LANDLOCK_ADD_RULE, ruleset, 1, struct.pack("<Qi", granted, target), 0)
            os.close(target)
    return [f"landlock-{version}"] if _libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0) == 0 else []


def refuse_calls() -> None:
    """Install the system-call filter. Raises ``OSError`` when that fails, ``KeyError`` on an unknown machine."""
    machine = platform.machine()
    refused = _REFUSED_CALLS[machine]
    program = [
        (0x20, 0, 0, 4),  # the architecture
        (0x15, 1, 0, _AUDIT_ARCHITECTURE[machine]),
        (0x06, 0, 0, 0x80000000),  # kill the process
        (0x20, 0, 0, 0),  # the call's number
        (0x35, len(refused) + 2, 0, _X32_BIT),
        *((0x15, len(refused) + 1 - position, 0, number) for position, number in enumerate(refused)),
        (0x15, 2, 0, _CLONE3),
        (0x06, 0, 0, 0x7FFF0000),  # allow
        (0x06, 0, 0, 0x00050000 | errno.EPERM),
        (0x06, 0, 0, 0x00050000 | errno.ENOSYS),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *instruction) for instruction in program))
    filter_program = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(code))
    _check(_libc.prctl(_PR_SET_SECCOMP, 2, filter_program, 0, 0), "system-call filter")


def main(spec: dict[str, object], command: list[str]) -> None:
    """Confine this process and become ``command``; does not return."""
    readable, writable = spec["readable"], spec["writable"]
    needed = [path for path in (*readable, *writable, command[0]) if os.path.lexists(path)]  # type: ignore[misc] # written by core.sandbox.confinement
    held = enter_namespaces(spec["user_id"], needed)  # type: ignore[arg-type] # written by core.sandbox.confinement
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    held += restrict_files(readable, writable)  # type: ignore[arg-type] # written by core.sandbox.confinement
    os.write(2, f"sandbox: {' '.join(held) or 'nothing optional'}\n".encode())
    set_limits(**spec["limits"])  # type: ignore[arg-type] # written by core.sandbox.confinement
    refuse_calls()
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent's death signal")
    if os.getppid() != spec["parent"]:
        raise ChildProcessError("the parent is gone")
    os.execv(command[0], command)  # noqa: S606 - the command is the caller's own, and no shell is wanted


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what} could not be set")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
