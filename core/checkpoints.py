"""What a gateway promises of a stream that runs, and billing reckons with."""

from typing import Final

CHECKPOINT_TOKENS_MAX: Final = 64
"""Tokens of one request after which a gateway writes another checkpoint, and so what its death leaves uncharged, or a
second's where an engine is faster than that.
"""
