"""Which adapters the engine holds in its slots and in host memory, and what loading them cost, as the worker writes it
to ``<run folder>/residency.json``. This is the reader's side, free of vLLM; the writer is in ``worker_tiers``.

The file is replaced atomically within some 20 ms of each change, so that the door and the agent can read it at any
time without asking the worker, which answers only between two steps. It tells what the worker's own tables say; the
door's ``GET /tenora/v1/residency`` looks at the tensors themselves and is what receipts and the doctor rest on.

``loads`` holds the newest ``LOADS_MAX`` records in order of ``seq``, which never repeats while the engine lives. A
reader remembers the last ``seq`` it has seen and counts the later ones; ``started_at_ms`` tells engines apart.
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
    """One adapter brought one tier up.

    ``memory``: read from the disk and converted. ``slot``: registered and copied into the tensors that batches use.
    ``ms`` is how long it took; with ``in_step`` every running request waited for it, which is the stall.
    """

    seq: int
    name: str
    kind: LoadKind
    ms: float
    in_step: bool
    at_ms: int


class EngineResidency(msgspec.Struct, frozen=True, kw_only=True):
    """The worker's tables. Names are engine names; ``memory`` and ``staged`` list the least recently used first.

    ``staged`` lies in host memory as well, but no step has used it yet. ``failed`` could not be loaded in a step: its
    slot is empty, and what it generates belongs to nobody. Evictions are counts since the engine started.
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

    @property
    def in_memory(self) -> frozenset[str]:
        """Names that need no reading from the disk before they can be used."""
        return frozenset(self.memory) | frozenset(self.staged)


def read_residency(run_dir: Path) -> EngineResidency | None:
    """The newest table; None while there is none, as before the engine has loaded its model."""
    try:
        return msgspec.json.decode((run_dir / RESIDENCY_FILE).read_bytes(), type=EngineResidency)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


class ResidencyReader:
    """Reads the table again only when the file has changed: asking costs one ``stat``.

    What was read is kept open, so that no later file can be given its inode, whatever their times and sizes.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._path = str(run_dir / RESIDENCY_FILE)
        self._kept: int | None = None
        self._seen: tuple[int, int] | None = None
        self._table: EngineResidency | None = None

    def now(self) -> EngineResidency | None:
        """The newest table, as ``read_residency`` gives it."""
        try:
            status = os.stat(self._path)  # noqa: PTH116 - the door asks once for each part of each stream
            if (status.st_dev, status.st_ino) != self._seen:
                self._keep(os.open(self._path, os.O_PATH | os.O_CLOEXEC))
                self._table = read_residency(self._run_dir)
        except FileNotFoundError:
            self._keep(None)
            self._table = None
        return self._table

    def _keep(self, descriptor: int | None) -> None:
        """Before the table is read: what is read may be newer than what is kept, and is then read once more."""
        if self._kept is not None:
            os.close(self._kept)
        self._kept, self._seen = descriptor, None
        if descriptor is not None:
            status = os.fstat(descriptor)
            self._seen = status.st_dev, status.st_ino

    def __del__(self) -> None:
        self._keep(None)
