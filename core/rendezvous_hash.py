"""Rendezvous hashing (highest random weight; Thaler and Ravishankar, 1998): each candidate draws a number from a key,
and the largest draw wins. All processes agree without messages. When a candidate comes or goes, only its own keys move.
"""

import hashlib
import math
import zlib
from collections.abc import Iterable, Mapping


def draw(key: str, candidate: str) -> int:
    """A candidate's number for a key, 32 bits, the same in every process. CRC-32 alone is linear; the product is not.

    Fast, because the gateway draws for every replica of every request. It is good enough to order candidates. Exact
    shares need ``weighted_winner``.
    """
    return (zlib.crc32(f"{key}\0{candidate}".encode()) * 0x9E3779B97F4A7C15 >> 16) & 0xFFFFFFFF


def winner(key: str, candidates: Iterable[str]) -> str | None:
    """The candidate with the largest draw for this key; None without candidates."""
    return max(candidates, key=lambda candidate: (draw(key, candidate), candidate), default=None)


def weighted_winner(key: str, weights: Mapping[str, int]) -> str:
    """One name of ``weights``, with a probability in proportion to its weight. There is at
    least one, and all weights are positive. When one weight grows, keys move to that name only.

    Weighted rendezvous hashing, section "Weighted Random Weight" of
    https://www.snia.org/sites/default/files/SDC15_presentations/dist_sys/Jason_Resch_New_Consistent_Hashings_Rev.pdf.
    """
    if len(weights) == 1:
        return next(iter(weights))
    hashed_key = hashlib.blake2b(key.encode(), digest_size=32).digest()
    return max(weights, key=lambda name: (weights[name] / _exponential(hashed_key, name), name))


def _exponential(hashed_key: bytes, name: str) -> float:
    """A draw from the exponential distribution, never 0. Of clocks with rates ``weights``, the first to ring wins."""
    drawn = hashlib.blake2b(name.encode(), key=hashed_key, digest_size=8).digest()
    return -math.log(((int.from_bytes(drawn) >> 11) + 0.5) / (1 << 53))
