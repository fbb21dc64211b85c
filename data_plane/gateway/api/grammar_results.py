"""The results of compiled grammars that a gateway process remembers, within a number and a compiled size.

An engine forgets grammars by their size, and compiles one that it has forgotten again. A gateway must forget it first:
else callers could alternate between known grammars, and each request would be a compilation that no limit counts.
Which grammars are compiled is decided in ``schema_compiler``.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

Result = TypeVar("Result")


class Known(NamedTuple, Generic[Result]):
    """A remembered result."""

    result: Result


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Result]):
    known: Known[Result]
    size_bytes: int
    until: float  # monotonic


class GrammarResults(Generic[Result]):
    """Results by digest. Over a limit, the tenant whose grammars are the largest together loses its least recently used
    one, so that a tenant with many grammars does not cost others theirs.
    """

    def __init__(self, *, count_max: int, bytes_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._clock = clock
        self._tenants: dict[bytes, str] = {}  # by digest: the tenant that had the grammar compiled
        self._entries: dict[str, OrderedDict[bytes, _Entry[Result]]] = {}
        self._sizes_bytes: dict[str, int] = {}

    def get(self, digest: bytes) -> Known[Result] | None:
        """The result of a grammar, for whichever tenant it was compiled; None where it is not known."""
        if (tenant_id := self._tenants.get(digest)) is None:
            return None
        entry = self._entries[tenant_id][digest]
        if entry.until <= self._clock():
            self._forget(digest)
            return None
        self._entries[tenant_id].move_to_end(digest)
        return entry.known

    def put(
        self, tenant_id: str, digest: bytes, result: Result, *, size_bytes: int = 0, valid_s: float = math.inf
    ) -> None:
        """Remember a result for ``valid_s``. ``size_bytes`` is the size of the compiled grammar in an engine."""
        self._forget(digest)
        self._tenants[digest] = tenant_id
        entry = _Entry(Known(result), size_bytes, self._clock() + valid_s)
        self._entries.setdefault(tenant_id, OrderedDict())[digest] = entry
        self._sizes_bytes[tenant_id] = self._sizes_bytes.get(tenant_id, 0) + size_bytes
        while len(self._tenants) > self._count_max or sum(self._sizes_bytes.values()) > self._bytes_max:
            largest = max(self._entries, key=lambda each: (self._sizes_bytes[each], len(self._entries[each])))
            self._forget(next(iter(self._entries[largest])))

    def _forget(self, digest: bytes) -> None:
        if (tenant_id := self._tenants.pop(digest, None)) is None:
            return
        entries = self._entries[tenant_id]
        self._sizes_bytes[tenant_id] -= entries.pop(digest).size_bytes
        if not entries:
            del self._entries[tenant_id], self._sizes_bytes[tenant_id]
