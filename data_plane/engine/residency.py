"""The residency table: which adapters the engine holds in its slots and in host memory, and what their loads cost.

The worker writes it to ``<run folder>/residency.json`` (``worker.residency_table``). This module is the reader's side
and does not import vLLM. The file is replaced atomically within about 20 ms of each change. The middleware and the
agent can therefore read it at any time without a call to the worker, which answers only between two steps. The table
repeats the worker's bookkeeping; ``GET /tenora/v1/residency`` inspects the tensors themselves, and revocation receipts
and the doctor rely on that route.

``loads`` holds the newest ``LOADS_MAX`` records in order of ``seq``, which never repeats while the engine lives. A
reader remembers the last ``seq`` that it has seen and counts the later ones; ``started_at_ms`` identifies the engine.
"""

import os
from pathlib import Path
from typing import Final, Literal

import msgspec

RESIDENCY_FILE: Final = "residency.json"
SOCKET_FILE: Final = "worker.sock"
LOADS_MAX: Final = 256

LoadKind = Literal["memory", "slot"]


class LoadRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter loaded one tier up.

    ``memory``: read from disk and converted. ``slot``: registered and copied into the tensors that batches use.
    ``ms`` is the duration. With ``in_step``, every running request waited for that long: this is the stall.
    """

    seq: int
    name: str
    kind: LoadKind
    ms: float
    in_step: bool
    at_ms: int


class EngineResidency(msgspec.Struct, frozen=True, kw_only=True):
    """The worker's tables. Names are engine names; ``memory`` and ``staged`` list the least recently used first.

    ``staged`` adapters are in host memory as well, but no step has used them yet. ``failed`` adapters could not be
    loaded in a step: their slot is empty, and the tokens generated with it belong to no adapter. Evictions are counts
    since the engine started, and ``step_stall_ms`` is the time that steps have waited for loads since then.
    """

    started_at_ms: int
    version: int
    slots: tuple[str | None, ...]
    memory: tuple[str, ...]
    staged: tuple[str, ...]
    pinned: tuple[str, ...]
    failed: tuple[str, ...]
    slot_evictions: int
    memory_evictions: int
    loads: tuple[LoadRecord, ...]
    step_stall_ms: int = 0

    @property
    def in_memory(self) -> frozenset[str]:
        """Names that can be used without a read from disk."""
        return frozenset(self.memory) | frozenset(self.staged)


def read_residency(run_dir: Path) -> EngineResidency | None:
    """The newest table; None while there is none, for example before the engine has loaded its model."""
    try:
        return msgspec.json.decode((run_dir / RESIDENCY_FILE).read_bytes(), type=EngineResidency)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


class ResidencyReader:
    """Reads the table again only when the file has changed: a call usually costs one ``stat``.

    The reader keeps the file that it read open. No later file can then get its inode, whatever its times and size.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._path = str(run_dir / RESIDENCY_FILE)
        self._open_file: int | None = None
        self._file_id: tuple[int, int] | None = None
        self._table: EngineResidency | None = None

    def now(self) -> EngineResidency | None:
        """The newest table, as ``read_residency`` returns it."""
        try:
            status = os.stat(self._path)  # noqa: PTH116 - the middleware calls this for each chunk of each stream
            if (status.st_dev, status.st_ino) != self._file_id:
                self._keep_open(os.open(self._path, os.O_PATH | os.O_CLOEXEC))
                self._table = read_residency(self._run_dir)
        except FileNotFoundError:
            self._keep_open(None)
            self._table = None
        return self._table

    def _keep_open(self, descriptor: int | None) -> None:
        """Called before the table is read: the table may then be newer than the open file, and is read once more."""
        if self._open_file is not None:
            os.close(self._open_file)
        self._open_file, self._file_id = descriptor, None
        if descriptor is not None:
            status = os.fstat(descriptor)
            self._file_id = status.st_dev, status.st_ino

    def __del__(self) -> None:
        self._keep_open(None)
