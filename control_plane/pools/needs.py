"""What pools needed over time: one row for each slot of ``forecast`` that has ended, for four weeks.

A process that dies loses the slot that runs, of which the next leader sees the rest.
"""

from collections.abc import Mapping
from typing import Final

from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, delete, select

from control_plane.pools.forecast import WEEK, SlotNeed, expected_need, slot_of, slots_read
from control_plane.pools.models import PoolNeed

_KEPT_SLOTS: Final = 4 * WEEK + 12
_AHEAD_MAX_S: Final = 1800  # one replica that hung while it started must not fill the pool for a day


class PoolNeeds:
    """The needs that one process sees, and the forecasts that it has made from all that are stored."""

    def __init__(self) -> None:
        self._running: dict[str, SlotNeed] = {}
        self._expected: dict[str, tuple[tuple[int, int], int | None]] = {}  # the slots of each, and their forecast

    def expected(self, session: Session, starts_s: Mapping[str, float], unix_s: float) -> dict[str, int | None]:
        """The forecast of each of these pools, given how long its replicas take to start. It is made again once it is
        for other slots.
        """
        slots = {
            pool: (slot_of(unix_s), slot_of(unix_s + min(start_s, _AHEAD_MAX_S))) for pool, start_s in starts_s.items()
        }
        stale = {pool: asked for pool, asked in slots.items() if self._expected.get(pool, (None,))[0] != asked}
        if stale:
            wanted = set[int]().union(*(slots_read(*asked) for asked in set(stale.values())))
            rows = select(PoolNeed.pool, PoolNeed.slot, PoolNeed.replicas).where(
                col(PoolNeed.pool).in_(stale), col(PoolNeed.slot).in_(wanted)
            )
            needs: dict[str, dict[int, float]] = {pool: {} for pool in stale}
            for pool, slot, replicas in session.exec(rows):
                needs[pool][slot] = replicas
            for pool, asked in stale.items():
                self._expected[pool] = asked, expected_need(needs[pool], *asked)
        return {pool: self._expected[pool][1] for pool in slots}

    def note(self, session: Session, pool: str, need: int, unix_s: float) -> None:
        """A pool needs so many replicas now. Stores the slot before, if this is the first of another."""
        slot = slot_of(unix_s)
        running = self._running.setdefault(pool, SlotNeed(slot))
        if running.slot != slot:
            row = {"pool": pool, "slot": running.slot, "replicas": running.mean}
            session.exec(insert(PoolNeed).values(row).on_conflict_do_nothing())
            session.exec(delete(PoolNeed).where(col(PoolNeed.pool) == pool, col(PoolNeed.slot) < slot - _KEPT_SLOTS))
            running = self._running[pool] = SlotNeed(slot)
        running.add(need)
