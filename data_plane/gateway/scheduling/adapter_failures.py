"""Which replicas could not bring an adapter in a moment ago, so that its requests go to others meanwhile. What such a
failure is, its caller decides. Pure: times come in, in seconds of a monotonic clock.

Fails open: what is forgotten early, or was seen by another gateway only, costs an attempt and no answer.
"""

from typing import Final

_NOBODY: Final = frozenset[str]()


class AdapterFailures:
    """Replicas by the adapters that they failed. Of more than ``adapters_max`` adapters, those that failed longest ago
    are forgotten.
    """

    def __init__(self, *, adapters_max: int) -> None:
        self._adapters_max = adapters_max
        self._until: dict[str, dict[str, float]] = {}  # by adapter, the one that failed last at the end, and replica

    def note(self, adapter: str, replica_id: str, *, now_s: float, until_s: float) -> bool:
        """A replica could not bring an adapter in. Whether that is news."""
        known = self._until.pop(adapter, {})
        fresh = {name: until for name, until in known.items() if until > now_s}
        self._until[adapter] = {**fresh, replica_id: until_s}
        if len(self._until) > self._adapters_max:
            del self._until[next(iter(self._until))]
        return replica_id not in fresh

    def of(self, adapter: str, *, now_s: float) -> frozenset[str]:
        """The replicas that are not to be asked for an adapter while any other can be."""
        known = self._until.get(adapter)
        if known is None:
            return _NOBODY
        found = frozenset(name for name, until in known.items() if until > now_s)
        if not found:
            del self._until[adapter]
        return found
