"""Pure rating: quantities times a price, in nanodollars. No clock, no database and no rounding beyond the one named
here.

Billing rates usage records with it and gateways hold and settle with it, so both count the same. KV page-milliseconds
are priced per page-second, truncated below one nanodollar per request, in the tenant's favor. Engines measure them, and
``data_plane/gateway/settlement/usage_event.py`` estimates where no report came. A service tier has prices of its own,
and no arithmetic of its own.
"""

from typing import Final, Protocol

import msgspec

from core.contracts.grants import Prices

MS_PER_PAGE_SECOND: Final = 1_000
"""KV page-time is counted in page-milliseconds and priced by the page-second."""


class Quantities(Protocol):
    """The common quantities of a usage event and a usage record. ``input_tokens`` includes ``cached_tokens``."""

    @property
    def input_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def kv_page_ms(self) -> int: ...


class RatedAmounts(msgspec.Struct, frozen=True, kw_only=True):
    """What the quantities of one usage event or record cost, in parts."""

    input_nanos: int
    cached_input_nanos: int
    output_nanos: int
    kv_nanos: int

    @property
    def amount_nanos(self) -> int:
        """The total."""
        return self.input_nanos + self.cached_input_nanos + self.output_nanos + self.kv_nanos


def rate(used: Quantities, prices: Prices) -> RatedAmounts:
    """What the quantities cost. The same quantities at the same prices always cost the same."""
    assert 0 <= used.cached_tokens <= used.input_tokens, "cached tokens are a part of the input"
    assert used.output_tokens >= 0, "tokens are counted upwards"
    assert used.kv_page_ms >= 0, "time does not run backwards"
    return RatedAmounts(
        input_nanos=(used.input_tokens - used.cached_tokens) * prices.input_nanos,
        cached_input_nanos=used.cached_tokens * prices.cached_input_nanos,
        output_nanos=used.output_tokens * prices.output_nanos,
        kv_nanos=used.kv_page_ms * prices.kv_page_second_nanos // MS_PER_PAGE_SECOND,
    )
