"""What may go from the disk so that something else fits: a pure decision over sizes and times of use."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import msgspec


class CachedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter on the disk; ``used_at_ns`` is its last use in Unix nanoseconds."""

    digest: str
    size_bytes: int
    used_at_ns: int


def choose_victims(
    adapters: Iterable[CachedAdapter], *, needed_bytes: int, budget_bytes: int, protected: AbstractSet[str]
) -> tuple[list[str], int]:
    """The least recently used digests to remove so that ``needed_bytes`` more fit the budget, and by how many bytes it
    is exceeded even so. Protected ones are never among them.
    """
    found = sorted(adapters, key=lambda adapter: (adapter.used_at_ns, adapter.digest))
    excess = sum(adapter.size_bytes for adapter in found) + needed_bytes - budget_bytes
    victims = []
    for adapter in found:
        if excess <= 0:
            break
        if adapter.digest not in protected:
            victims.append(adapter.digest)
            excess -= adapter.size_bytes
    return victims, max(0, excess)
