"""What one gateway may take of a pool while tenants of others wait for it. Pure: times come in, in seconds of a
monotonic clock.

A share is seldom a whole number of requests. Who is at its share but for a part of one may take that one while it owes
nothing; so the part goes round between the gateways, and over time each has what is its own.
"""

from typing import Final

from data_plane.gateway.scheduling.fair_share import Division

_OWED_MAX_S: Final = 10.0  # what was taken beyond the share, or left, further back than this is forgotten


class Allotment:
    """One gateway's pages in one pool."""

    def __init__(self) -> None:
        self.division = Division()
        self._owed = 0.0  # page-seconds held beyond the share; below 0 what was left to others
        self._since = 0.0

    @property
    def bounded(self) -> bool:
        """Whether others wait for what this gateway leaves."""
        return self.division.share is not None

    def divide(self, division: Division, held: int, now_s: float) -> None:
        """The pool is divided anew; this gateway has had ``held`` pages in work until now."""
        last = self.division
        if last.share is None or division.share is None:
            self._owed = 0.0
        else:
            most = last.share * _OWED_MAX_S
            owed = self._owed + (held - last.share * last.fill) * (now_s - self._since)
            self._owed = max(-most, min(most, owed))
        self.division, self._since = division, now_s

    def allows(self, held: int, pages: int, *, overdue: bool = False) -> bool:
        """Whether this gateway, with ``held`` pages in work, may take so many more; for who is overdue it may owe."""
        share = self.division.share
        return share is None or held + pages <= share or (held < share and (overdue or self._owed <= 0))
