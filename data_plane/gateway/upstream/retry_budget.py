"""How many requests may be tried a second time: a share of all requests, so that retries never add up to a storm.

Whether a single request may be retried at all is decided where it is served.
"""


class RetryBudget:
    """A bucket of retries, which every request fills by ``percent`` of one, up to ``burst``. It begins full."""

    def __init__(self, *, percent: int, burst: int) -> None:
        self._percent = percent
        self._max = burst * 100
        self._hundredths = self._max

    def deposit(self) -> None:
        """A request has come."""
        self._hundredths = min(self._max, self._hundredths + self._percent)

    def withdraw(self) -> bool:
        """Whether one retry may be made; it is counted then."""
        if self._hundredths < 100:
            return False
        self._hundredths -= 100
        return True
