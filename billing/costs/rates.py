"""What a replica costs: dated rates of pools and placement groups, and the exact charge of a span of time. Pure.

A charge is rate × time in nanodollars per hour × milliseconds, a whole number: nothing is rounded before a report's
rows are (``costs.allocation``).
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec

from core import fields
from core.errors import Unprocessable
from core.periods import EPOCH

MS_PER_HOUR: Final = 3_600_000


class DatedRate(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica of a pool, or with ``pool`` "" of a placement group, costs from ``effective_from`` on, until a
    later rate of the same, in nanodollars per hour. ``slot_nanos_per_hour`` is the declared cost of one pinned slot,
    which is taken out of the replica's idle time.
    """

    base_model: Annotated[str, fields.BASE_MODEL]
    rank_max: Annotated[int, fields.RANK_MAX]
    pool: Annotated[str, fields.RATE_POOL] = ""
    effective_from: Annotated[datetime, fields.EFFECTIVE_FROM]
    nanos_per_hour: Annotated[int, fields.NANOS_PER_HOUR]
    slot_nanos_per_hour: Annotated[int, fields.SLOT_NANOS_PER_HOUR]

    @property
    def from_ms(self) -> int:
        """The same instant in Unix milliseconds."""
        return (self.effective_from - EPOCH) // timedelta(milliseconds=1)


class NoRate(Unprocessable):
    """A replica has no rate for a time that must be paid."""


def rates_of(rates: Iterable[DatedRate], *, base_model: str, rank_max: int, pool: str) -> list[DatedRate]:
    """The rates of a replica in order of time: its placement group's until its pool's first one, then its pool's."""
    mine = [each for each in rates if (each.base_model, each.rank_max) == (base_model, rank_max)]
    of_pool = [each for each in mine if pool and each.pool == pool]
    starts = min((each.from_ms for each in of_pool), default=None)
    of_group = [each for each in mine if not each.pool and (starts is None or each.from_ms < starts)]
    return sorted(of_group + of_pool, key=lambda each: each.effective_from)


def pieces(rates: Sequence[DatedRate], start_ms: int, end_ms: int) -> Iterator[tuple[int, int, DatedRate]]:
    """The parts of ``[start_ms, end_ms)`` with their rates. ``rates`` are in order of time. Raises NoRate for a part
    before the first one: a missing rate is never taken as zero.
    """
    if start_ms >= end_ms:
        return
    if not rates or start_ms < rates[0].from_ms:
        raise NoRate(
            "the replica has no rate at the beginning of this time; add one with POST /api/v1/admin/costs/rates and an "
            "effective_from before it",
            code="rate_missing",
        )
    borders = [rate.from_ms for rate in rates[1:]] + [end_ms]
    for rate, border in zip(rates, borders, strict=True):
        begins, ends = max(start_ms, rate.from_ms), min(end_ms, border)
        if begins < ends:
            yield begins, ends, rate


def charge(rates: Sequence[DatedRate], start_ms: int, end_ms: int) -> int:
    """Nanodollars per hour × milliseconds of ``[start_ms, end_ms)``. Divide by ``MS_PER_HOUR`` for nanodollars."""
    return sum(rate.nanos_per_hour * (end - begin) for begin, end, rate in pieces(rates, start_ms, end_ms))


def slot_charge(rates: Sequence[DatedRate], start_ms: int, end_ms: int, slots: int) -> int:
    """The declared charge of pinned slots, in the unit of ``charge``."""
    return sum(rate.slot_nanos_per_hour * slots * (end - begin) for begin, end, rate in pieces(rates, start_ms, end_ms))
