r"""How log-probabilities name tokens: with the bytes of each token, also where a character has several tokens.

Of such a character, vLLM (0.32, ``vllm/v1/engine/logprobs.py``) gives the first tokens no text and no bytes, and the
last one the whole. Alternatives then have equal names, and the completions API, whose keys are names, loses tokens.
Here every token has its own bytes, so that together they are the bytes of the text. A part of a character is named as
OpenAI names it: ``\xf0\x9f`` in chats, ``bytes:\xf0\x9f`` in completions.
"""

import codecs
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, Self

_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE: Final = "▁"
_TOKENIZERS_MAX: Final = 4
_IN_COMPLETIONS: Final = "bytes:"


class Token(str):
    """A token whose bytes are not those of its name. VLLM asks a name for its UTF-8 to list the bytes, and for its
    length to find the offset of the next token in the text.
    """

    __slots__ = ("_characters", "_data", "by_bytes")
    by_bytes: bool
    _characters: int
    _data: bytes

    def __new__(cls, name: str, data: bytes, *, characters: int, by_bytes: bool) -> Self:
        """``characters`` are those of the text that this token completes."""
        token = super().__new__(cls, name)
        token._data, token._characters, token.by_bytes = data, characters, by_bytes
        return token

    def encode(self, *_: object, **__: object) -> bytes:
        """The token's own bytes."""
        return self._data

    def __len__(self) -> int:
        return self._characters

    def in_completions(self) -> "Token":
        """The token as the completions API names it."""
        if not self.by_bytes:
            return self
        return Token(_IN_COMPLETIONS + self, self._data, characters=self._characters, by_bytes=True)


class Vocabulary:
    """The tokens of a tokenizer, which is a fast one of transformers: byte-level (GPT-2's alphabet), with a fallback to
    bytes (SentencePiece), or of whole characters.
    """

    def __init__(self, tokenizer: Any) -> None:
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        decoder = tokenizer.backend_tokenizer.decoder.__getstate__()  # its JSON
        self._tokenizer = tokenizer
        self._added = dict(tokenizer.added_tokens_decoder)
        self._alphabet = {char: byte for byte, char in bytes_to_unicode().items()} if b'"ByteLevel"' in decoder else {}
        self._falls_back = b'"ByteFallback"' in decoder
        self._known: dict[int, tuple[str, bytes, bool]] = {}

    def token(self, token_id: int) -> tuple[str, bytes, bool]:
        """A token's name, its bytes in the text, and whether it is named by them."""
        if (known := self._known.get(token_id)) is None:
            known = self._known[token_id] = self._read(token_id)
        return known

    def _read(self, token_id: int) -> tuple[str, bytes, bool]:
        if (added := self._added.get(token_id)) is not None:
            return added.content, b"" if added.special else added.content.encode(), False
        if (piece := self._tokenizer.convert_ids_to_tokens(token_id)) is None:
            return f"token_id:{token_id}", b"", False  # models have more rows than tokens
        if self._alphabet and all(char in self._alphabet for char in piece):
            data = bytes([self._alphabet[char] for char in piece])
        elif self._falls_back and (byte := _BYTE.fullmatch(piece)):
            data = bytes.fromhex(byte[1])
            if data.isascii() and self._has(data.decode()):
                return f"\\x{data.hex()}", data, True
        else:
            data = (piece.replace(_SPACE, " ") if self._falls_back else self._tokenizer.decode([token_id])).encode()
        try:
            return data.decode(), data, False
        except UnicodeDecodeError:
            return repr(data)[2:-1], data, True

    def _has(self, text: str) -> bool:
        """Whether another token has this text."""
        piece = text.replace(" ", _SPACE)
        token_id = self._tokenizer.convert_tokens_to_ids(piece)
        return token_id is not None and bool(self._tokenizer.convert_ids_to_tokens(token_id) == piece)


@lru_cache(_TOKENIZERS_MAX)
def _vocabulary(tokenizer: Any) -> Vocabulary:
    return Vocabulary(tokenizer)


def named(vocabulary: Vocabulary, token_ids: Sequence[int], before: Sequence[int]) -> list[str]:
    """The names of the alternatives at one position, of which the first was sampled, after the tokens ``before``.
    It comes again where it is among the likeliest.
    """
    found = [vocabulary.token(token_id) for token_id in token_ids]
    names = [
        Token(name, data, characters=len(name), by_bytes=by_bytes) if by_bytes or not data else name
        for name, data, by_bytes in found
    ]
    name, data, by_bytes = found[0]
    earlier = [vocabulary.token(token_id) for token_id in before]
    if by_bytes or not data or (earlier and earlier[-1][2]):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(b"".join([each for _, each, _ in earlier]))
        sampled = Token(name, data, characters=len(decoder.decode(data)), by_bytes=by_bytes)
        names = [sampled if token_id == token_ids[0] else name for token_id, name in zip(token_ids, names, strict=True)]
    return names


def install() -> None:
    """Replace the names in this process, which is vLLM's API server, once it has loaded its routes."""
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
    from vllm.v1.engine.logprobs import LogprobsProcessor

    vllms_own: Callable[..., list[str]] = LogprobsProcessor._verify_tokens  # noqa: SLF001 - vLLM has no hook

    def verify_tokens(
        self: Any, decoded_tokens_list: list[str], tokens: list[int], context_token_ids: list[int] | None = None
    ) -> list[str]:
        if getattr(self.tokenizer, "backend_tokenizer", None) is None:
            return vllms_own(self, decoded_tokens_list, tokens, context_token_ids)
        before = self._get_sampled_context_ids(self.logprobs) if context_token_ids is None else context_token_ids
        return named(_vocabulary(self.tokenizer), tokens, before)

    vllms_logprobs: Callable[..., Any] = OpenAIServingCompletion._create_completion_logprobs  # noqa: SLF001 - see above

    def completion_logprobs(self: Any, **given: Any) -> Any:
        found, token_ids = vllms_logprobs(self, **given), given["token_ids"]
        if token_ids:
            last = given["top_logprobs"][len(token_ids) - 1][token_ids[-1]].decoded_token
            if isinstance(last, Token):  # by its length, a stream's next offset is computed
                found.tokens[-1] = last.in_completions()
        return found

    chat_name: Callable[..., str] = OpenAIServingCompletion._get_decoded_token  # noqa: SLF001 - see above

    def completion_name(*arguments: Any, **options: Any) -> str:
        name = chat_name(*arguments, **options)
        return name.in_completions() if isinstance(name, Token) else name

    LogprobsProcessor._verify_tokens = verify_tokens  # noqa: SLF001 - see above
    OpenAIServingCompletion._create_completion_logprobs = completion_logprobs  # noqa: SLF001 - see above
    OpenAIServingCompletion._get_decoded_token = staticmethod(completion_name)  # noqa: SLF001 - see above
