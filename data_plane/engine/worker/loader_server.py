"""The worker's threads beside its steps: one answers the middleware, some load adapters, one writes the table.

Adapters are loaded in the order of the calls: the middleware limits the parallel loads of each tenant, a load takes
tens of milliseconds, and a load for which no request waits any longer is skipped. The threads are daemons of the worker
process and end with it. A failed load is an answer to the middleware and never an exception in the worker. A table that
cannot be written is logged and written again with the next change.
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
_REWRITE_INTERVAL_S: Final = 60.0
_WRITE_INTERVAL_S: Final = 0.02
Load = Callable[[str, str], bool]


class LoaderServer:
    """Serves one connection of the middleware at a time; the next can connect when it is closed."""

    def __init__(self, table: ResidencyTable[Any], run_dir: Path, load: Load, *, loaders: int) -> None:
        self._table = table
        self._run_dir = run_dir
        self._load = load
        self._loaders = ThreadPoolExecutor(loaders, "adapter-load", initializer=_use_one_core)
        self._writing = threading.Lock()

    def start(self) -> None:
        """Bind the socket, write the first table, start the threads. Raises ``OSError`` for an unusable run folder."""
        (self._run_dir / SOCKET_FILE).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_address(self._run_dir) as address:
            listener.bind(address)
        listener.listen(1)
        self._write()
        threading.Thread(target=self._serve, args=(listener,), name="adapter-calls", daemon=True).start()
        threading.Thread(target=self._write_changes, name="residency-table", daemon=True).start()

    def write_now(self) -> None:
        """Write the table to disk before this returns."""
        try:
            self._write()
        except OSError as error:
            _log.error("residency table write failed", run_dir=str(self._run_dir), reason=error.strerror)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                reply = _ReplyWriter(connection)
                try:
                    while line := lines.readline(LINE_BYTES_MAX):
                        self._handle(msgspec.json.decode(line, type=WorkerCall), reply)
                except (OSError, msgspec.DecodeError) as error:
                    _log.error("middleware connection broken", reason=repr(error))

    def _handle(self, call: WorkerCall, send: "_ReplyWriter") -> None:
        table = self._table
        match call.op:
            case "acquire":
                send(WorkerReply(id=call.id, tier=table.acquire(call.name)))
            case "replace_acquired":
                table.replace_acquired(call.names)
                send(WorkerReply(id=call.id))
            case "release":
                table.release(call.name)
                send(WorkerReply(id=call.id))
            case "pin":
                send(WorkerReply(id=call.id, missing=tuple(table.pin(call.names))))
            case "revoke":
                table.set_revoked(call.names)
                send(WorkerReply(id=call.id))
            case "load":
                self._loaders.submit(self._load_and_reply, call, send)

    def _load_and_reply(self, call: WorkerCall, send: "_ReplyWriter") -> None:
        try:
            wanted = self._table.wants(call.name)  # its requests may have given up while it was queued
            reply = WorkerReply(id=call.id, loaded=wanted and self._load(call.name, call.path))
        except Exception as error:  # noqa: BLE001 - vLLM raises many kinds of errors, and each concerns only this adapter
            _log.warning("adapter load failed", adapter=call.name, reason=repr(error))
            reply = WorkerReply(id=call.id, error=f"{type(error).__name__}: {error}"[:500])
        send(reply)

    def _write_changes(self) -> None:
        seen = -1
        while True:
            if self._table.wait_for_change(seen, _REWRITE_INTERVAL_S):
                seen = self._table.version
                self.write_now()
                time.sleep(_WRITE_INTERVAL_S)  # steps that swap adapters change the table more often than it is read

    def _write(self) -> None:
        with self._writing:  # so that an older table never replaces a newer one
            fresh = self._run_dir / f"{RESIDENCY_FILE}.new"
            fresh.write_bytes(msgspec.json.encode(self._table.snapshot()))
            fresh.replace(self._run_dir / RESIDENCY_FILE)


class _ReplyWriter:
    """Writes complete lines, from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def __call__(self, reply: WorkerReply) -> None:
        try:
            with self._lock:
                self._connection.sendall(msgspec.json.encode(reply) + b"\n")
        except OSError as error:
            _log.info("middleware disconnected", reason=error.strerror, pid=os.getpid())


def _use_one_core() -> None:
    """Limit this thread to one core: a second team of OpenMP threads would compete with the team that steps use.

    Torch sets the number of threads itself at a thread's first use, so torch has to be called before
    (ATen/ParallelOpenMP.cpp).
    """
    torch.get_num_threads()
    set_threads = getattr(ctypes.CDLL(None), "omp_set_num_threads", None)
    if set_threads is not None:  # absent when torch's OpenMP was not loaded globally: loads then only use more cores
        set_threads(1)
