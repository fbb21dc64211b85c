"""The unit in which KV cache is reserved, limited and priced: one page is 16 tokens of one sequence.

Engines allocate blocks that may be larger; a sequence then holds whole blocks, so its pages round up to them.
"""

from typing import Final

PAGE_TOKENS: Final = 16


def pages_for(tokens: int, block_tokens: int = PAGE_TOKENS) -> int:
    """Pages that ``tokens`` of one sequence occupy on an engine whose block is ``block_tokens`` (a multiple of 16)."""
    blocks = -(-tokens // block_tokens)
    return blocks * (block_tokens // PAGE_TOKENS)


def page_ms(tokens: int, duration_ms: int, block_tokens: int = PAGE_TOKENS) -> int:
    """The most page-milliseconds that a sequence can hold: its largest number of pages for all of its milliseconds on
    the engine. Billed is the area under its growth (``core.kv_area``).
    """
    return pages_for(tokens, block_tokens) * duration_ms
