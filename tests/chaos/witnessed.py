"""What the witnesses have journalled: tokens by request and replica. Each line is read once, however often one asks."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec


@dataclass
class Emitted:
    """What one replica journalled of one request."""

    input_tokens: int = 0
    output_tokens: int = 0


class _Line(msgspec.Struct):
    """A line of a journal; the rest of it is of no interest."""

    request: str = ""
    prompt: int | None = None
    token: str | None = None
    received: str | None = None


class Witnessed:
    """The journals of all replicas, over all boots of each, read on from where they were left."""

    def __init__(self) -> None:
        self.received: Counter[str] = Counter()  # requests by replica
        self._emitted: dict[str, dict[str, Emitted]] = {}
        self._read_bytes: Counter[str] = Counter()
        self._line = msgspec.json.Decoder(_Line)

    def read(self, journals: Mapping[str, Path]) -> dict[str, dict[str, Emitted]]:
        """Everything so far, by request id and replica."""
        for replica, path in journals.items():
            with path.open("rb") as journal:
                journal.seek(self._read_bytes[replica])
                for line in journal:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    self._read_bytes[replica] += len(line)
                    self._note(replica, self._line.decode(line))
        return self._emitted

    def _note(self, replica: str, line: _Line) -> None:
        if line.received is not None:
            self.received[replica] += 1
            return
        one = self._emitted.setdefault(line.request, {}).setdefault(replica, Emitted())
        if line.token is not None:
            one.output_tokens += 1
        else:
            one.input_tokens += line.prompt or 0
