"""Reader of the witnesses' journals: tokens by request and replica. It reads each line once."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec


@dataclass
class Emitted:
    """Tokens that one replica journaled for one request."""

    input_tokens: int = 0
    output_tokens: int = 0
    aborted_prefill_tokens: int = 0


class _Line(msgspec.Struct):
    """The fields of a journal line that the reader needs."""

    request: str = ""
    prompt: int | None = None
    token: str | None = None
    aborted_prefill: int = 0
    received: str | None = None
    kv_page_ms: int | None = None


class Witnessed:
    """The journals of all replicas over all boots. Reading continues at the last offset."""

    def __init__(self) -> None:
        self.received: Counter[str] = Counter()  # requests by replica
        self._emitted: dict[str, dict[str, Emitted]] = {}
        self._read_bytes: Counter[str] = Counter()
        self._line = msgspec.json.Decoder(_Line)

    def read(self, journals: Mapping[str, Path]) -> dict[str, dict[str, Emitted]]:
        """All tokens so far, by request id and replica."""
        for replica, path in journals.items():
            with path.open("rb") as journal:
                journal.seek(self._read_bytes[replica])
                for line in journal:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    self._read_bytes[replica] += len(line)
                    self._record(replica, self._line.decode(line))
        return self._emitted

    def _record(self, replica: str, line: _Line) -> None:
        if line.received is not None:
            self.received[replica] += 1
            return
        if line.kv_page_ms is not None:
            return
        one = self._emitted.setdefault(line.request, {}).setdefault(replica, Emitted())
        if line.token is not None:
            one.output_tokens += 1
        else:
            one.input_tokens += line.prompt or 0
            one.aborted_prefill_tokens += line.aborted_prefill
