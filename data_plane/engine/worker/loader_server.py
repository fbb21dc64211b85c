"""The worker's threads beside its steps: one that answers the door, some that load adapters, one that writes the table.

Adapters are loaded in the order in which the door asks: it bounds how many of each tenant are on their way, one takes
tens of milliseconds, and one that nobody waits for any more takes none. The threads are daemons of the worker process
and end with it. A load that fails is an answer to the door, never an exception in the worker; a table that cannot be
written is logged and tried again with the next change.
"""

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
import torch

from data_plane.engine.residency import RESIDENCY_FILE, SOCKET_FILE
from data_plane.engine.worker.residency_table import ResidencyTable
from data_plane.engine.worker_protocol import LINE_BYTES_MAX, WorkerCall, WorkerReply, socket_address

_log: Final = structlog.get_logger()
_LOOK_AGAIN_S: Final = 60.0
_WRITE_INTERVAL_S: Final = 0.02
Load = Callable[[str, str], bool]


class LoaderServer:
    """Answers one door at a time; the next may connect when it is gone."""

    def __init__(self, table: ResidencyTable[Any], run_dir: Path, load: Load, *, loaders: int) -> None:
        self._table = table
        self._run_dir = run_dir
        self._load = load
        self._loaders = ThreadPoolExecutor(loaders, "adapter-load", initializer=_compute_alone)
        self._writing = threading.Lock()

    def start(self) -> None:
        """Bind the socket, write the first table and begin. Raises ``OSError`` when the run folder cannot be used."""
        (self._run_dir / SOCKET_FILE).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_address(self._run_dir) as address:
            listener.bind(address)
        listener.listen(1)
        self._write()
        threading.Thread(target=self._serve, args=(listener,), name="tier-door", daemon=True).start()
        threading.Thread(target=self._write_changes, name="tier-table", daemon=True).start()

    def write_now(self) -> None:
        """Replace the table on the disk before this returns."""
        try:
            self._write()
        except OSError as error:
            _log.error("residency cannot be written", run_dir=str(self._run_dir), reason=error.strerror)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                answer = _Answers(connection)
                try:
                    while line := lines.readline(LINE_BYTES_MAX):
                        self._handle(msgspec.json.decode(line, type=WorkerCall), answer)
                except (OSError, msgspec.DecodeError) as error:
                    _log.error("the door's connection broke", reason=repr(error))

    def _handle(self, call: WorkerCall, answer: "_Answers") -> None:
        table = self._table
        match call.op:
            case "hold":
                answer(WorkerReply(id=call.id, tier=table.hold(call.name)))
            case "hold_only":
                table.hold_only(call.names)
                answer(WorkerReply(id=call.id))
            case "release":
                table.release(call.name)
                answer(WorkerReply(id=call.id))
            case "pin":
                answer(WorkerReply(id=call.id, missing=tuple(table.pin(call.names))))
            case "refuse":
                table.refuse(call.names)
                answer(WorkerReply(id=call.id))
            case "load":
                self._loaders.submit(self._load_and_answer, call, answer)

    def _load_and_answer(self, call: WorkerCall, answer: "_Answers") -> None:
        try:
            wanted = self._table.wants(call.name)  # whoever asked may have given up in the queue
            reply = WorkerReply(id=call.id, loaded=wanted and self._load(call.name, call.path))
        except Exception as error:  # noqa: BLE001 - vLLM raises many kinds, and each concerns this adapter alone
            _log.warning("adapter could not be read", adapter=call.name, reason=repr(error))
            reply = WorkerReply(id=call.id, error=f"{type(error).__name__}: {error}"[:500])
        answer(reply)

    def _write_changes(self) -> None:
        seen = -1
        while True:
            if self._table.wait_for_change(seen, _LOOK_AGAIN_S):
                seen = self._table.version
                self.write_now()
                time.sleep(_WRITE_INTERVAL_S)  # steps that swap at every request change it oftener than anyone reads it

    def _write(self) -> None:
        with self._writing:  # a later table is never replaced by an earlier one
            fresh = self._run_dir / f"{RESIDENCY_FILE}.new"
            fresh.write_bytes(msgspec.json.encode(self._table.snapshot()))
            fresh.replace(self._run_dir / RESIDENCY_FILE)


class _Answers:
    """Writes whole lines, from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def __call__(self, reply: WorkerReply) -> None:
        try:
            with self._lock:
                self._connection.sendall(msgspec.json.encode(reply) + b"\n")
        except OSError as error:
            _log.info("the door is gone", reason=error.strerror, pid=os.getpid())


def _compute_alone() -> None:
    """One core for this thread: a second team of OpenMP threads would spin against the one that steps use.

    Torch sets the number itself at a thread's first use, so that it has to be asked before (ATen/ParallelOpenMP.cpp).
    """
    torch.get_num_threads()
    set_threads = getattr(ctypes.CDLL(None), "omp_set_num_threads", None)
    if set_threads is not None:  # absent when torch's OpenMP was not loaded globally: then loads only take more cores
        set_threads(1)
