"""KV page-time: how many KV pages a request holds, integrated over time, in whole page-milliseconds.

A sequence grows while it runs, so its page-time is the area under a step function, not its largest number of pages
times its stay. Times are milliseconds of one monotonic clock. Nothing here reads a clock.
"""

from core.kv_pages import PAGE_TOKENS, pages_for


class PageTime:
    """The integral of a number of pages that changes at known times. Exact: the sum of ``pages * (next time - time)``.

    Changes arrive in order of time. One that arrives late counts from the last change on, so that the integral never
    decreases.
    """

    __slots__ = ("_page_ms", "_since_ms", "pages")

    def __init__(self) -> None:
        self.pages = 0
        self._page_ms = 0  # up to ``_since_ms``
        self._since_ms = 0

    def set_pages(self, pages: int, at_ms: int) -> None:
        """From ``at_ms`` on, this many pages are held."""
        assert pages >= 0, "pages are a count"
        if at_ms > self._since_ms:
            self._page_ms += self.pages * (at_ms - self._since_ms)
            self._since_ms = at_ms
        self.pages = pages

    def page_ms(self, at_ms: int) -> int:
        """Page-milliseconds up to ``at_ms``. For a time before the last change, those up to the last change."""
        return self._page_ms + self.pages * max(0, at_ms - self._since_ms)

    def settled(self) -> tuple[int, int]:
        """(page-milliseconds up to the last change, time of that change)."""
        return self._page_ms, self._since_ms


class KvArea(PageTime):
    """The KV page-time of one request with one or more sequences, fed from an engine's schedule.

    A sequence holds its pages from the first ``hold`` to its ``release``. The time before, and the time between a
    ``release`` (a preemption) and the next ``hold``, cost nothing. A page that several sequences share, because they
    have a cached prefix in common, counts for each sequence that holds it.
    """

    __slots__ = ("_block_tokens", "_held")

    def __init__(self, block_tokens: int = PAGE_TOKENS) -> None:
        super().__init__()
        self._block_tokens = block_tokens
        self._held: dict[str, int] = {}

    def hold(self, sequence: str, tokens: int, at_ms: int) -> int:
        """From ``at_ms`` on, ``sequence`` holds the pages of ``tokens``. Returns by how many pages the request grew."""
        pages = pages_for(tokens, self._block_tokens)
        grown = pages - self._held.get(sequence, 0)
        self._held[sequence] = pages
        if grown:
            self.set_pages(self.pages + grown, at_ms)
        return grown

    def release(self, sequence: str, at_ms: int) -> int:
        """``sequence`` holds nothing from ``at_ms`` on. Returns by how many pages the request shrank."""
        freed = self._held.pop(sequence, 0)
        if freed:
            self.set_pages(self.pages - freed, at_ms)
        return freed


def even_growth_page_ms(
    prompt_tokens: int, output_tokens: int, duration_ms: int, block_tokens: int = PAGE_TOKENS
) -> int:
    """The page-time of a sequence that grows from its first to its last output token at an even pace: the figure for a
    sequence whose engine reported none. Rounded up, and at most the pages of its final length for the whole duration.
    """
    if output_tokens <= 0 or duration_ms <= 0:
        return 0
    first = -(-(prompt_tokens + 1) // block_tokens)
    last = -(-(prompt_tokens + output_tokens) // block_tokens)
    # Block number ``b + 1`` is taken with output token ``b * block_tokens - prompt_tokens + 1``: the tokens before it
    # are the time in which it was not held. This is the sum of these tokens over the blocks from ``first`` to ``last``.
    steps = last - first
    tokens_before = block_tokens * steps * (first + last - 1) // 2 - prompt_tokens * steps
    block_ms = last * duration_ms - tokens_before * duration_ms // output_tokens
    return block_ms * (block_tokens // PAGE_TOKENS)
