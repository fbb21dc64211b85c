"""How the rule ``classified`` judges a request: by rules that ask for the better member by themselves, else by logistic
regression over features of the caller's words, hashed into a fixed number of buckets. Pure.

The words are those of all turns of the user, not of the last one alone: "commit it" says nothing about the work.
``weights.json`` is written by ``python -m benchmarks.routing train``.
"""

import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, Self

import msgspec

from data_plane.gateway.api.openai_request import Call

WEIGHTS: Final = Path(__file__).with_name("weights.json")
BUCKETS: Final = 4096
LONG_CHARS: Final = 12_000
_CHARS_MAX: Final = 4_000  # of the user's last words
_WORDS_MAX: Final = 64  # from their beginning, and as many from their end
_WORD_COUNTS: Final = (4, 6, 8, 10, 13, 16, 20, 26, 32, 48, 64)
_SHORT_CHARS: Final = 5  # of a word without a beginning and an ending of its own
_LONG_CHARS_OF_WORD: Final = 8
_WORD: Final = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")
_CODE: Final = re.compile(
    r"```|\bdef \w+\(|\bclass \w+\W|[;{}]$|=>|</\w+>|#include|\bimport \w+|\w\(\w{0,20}\)"
    r"|\bSELECT\b(?:(?!\bSELECT\b).){1,200}\bFROM\b",  # each SELECT is read to the next one, so in linear time
    re.MULTILINE,
)

BetterReason = Literal["plan", "tools", "schema", "length"]


def reason_for_better(call: Call, *, is_priority: bool) -> BetterReason | None:
    """Why the better member has to answer, whatever the words are; None where they decide."""
    if is_priority:
        return "plan"
    if call.tools is not None:
        return "tools"
    if call.fields.get("response_format", {}).get("type") == "json_schema":
        return "schema"
    texts = call.prompts or [message["content"] for message in call.messages or ()]
    return "length" if sum(map(len, texts)) > LONG_CHARS else None


def words_of(call: Call) -> str:
    """The user's last words, as far as features read them."""
    texts = call.prompts or [message["content"] for message in call.messages or () if message["role"] == "user"]
    kept, left = [], _CHARS_MAX
    for text in reversed(texts):
        kept.append(text[-left:])
        left -= len(text)
        if left <= 0:
            break
    return "\n".join(reversed(kept))


def features(text: str) -> list[int]:
    """The buckets of a text: of its words with their beginnings and endings, its first word, how many words, long
    words, numbers and commas it has, whether it asks, and whether it looks like code.
    """
    words = _WORD.findall(text.lower())
    if len(words) > 2 * _WORDS_MAX:
        words = words[:_WORDS_MAX] + words[-_WORDS_MAX:]
    names = {f"word {word}" for word in words}
    for word in {word for word in words if len(word) > _SHORT_CHARS}:
        names.update((f"begin {word[:4]}", f"begin {word[:5]}", f"begin {word[:6]}", f"end {word[-3:]}"))
    names.update(f"first {word}" for word in words[:1])
    names.update(f"words {count}" for count in _WORD_COUNTS if len(words) >= count)
    names.update(f"{name} {min(3, count)}" for name, count in _counts(text, words))
    if text.rstrip().endswith("?"):
        names.add("asks")
    if _CODE.search(text):
        names.add("code")
    return sorted({zlib.crc32(name.encode()) % BUCKETS for name in names})


def _counts(text: str, words: list[str]) -> list[tuple[str, int]]:
    return [
        ("numbers", sum(word.isdigit() for word in words)),
        ("commas", text.count(",")),
        ("long words", sum(len(word) > _LONG_CHARS_OF_WORD for word in words)),
    ]


class LinearModel(msgspec.Struct, kw_only=True):
    """How likely the smaller member of a group suffices for a text. There is a weight for each bucket."""

    bias: float = 0.0
    weights: list[float] = msgspec.field(default_factory=lambda: [0.0] * BUCKETS)

    @classmethod
    def load(cls) -> Self:
        """The model of the package. Raises ValueError for weights of other features."""
        model = msgspec.json.decode(WEIGHTS.read_bytes(), type=cls)
        if len(model.weights) != BUCKETS:
            raise ValueError(f"{WEIGHTS} has {len(model.weights)} weights, not {BUCKETS}; train it again")
        return model

    def probability(self, text: str) -> float:
        """How likely the smaller member suffices."""
        return self.of(features(text))

    def of(self, found: Sequence[int]) -> float:
        """The same for the features of a text. Each counts less in a long one, so that length alone decides nothing."""
        score = self.bias + sum([self.weights[bucket] for bucket in found]) / math.sqrt(len(found))
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, score))))
