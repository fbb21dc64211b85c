"""Counts prompt tokens exactly as the engine does, with the base model's own tokenizer and chat template."""

import asyncio
import contextlib
import json
import sys
import threading
from collections import OrderedDict
from typing import Final

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError
from tokenizers import Tokenizer

from core import redis_keys
from core.contracts.routes import BaseModelRoute
from core.errors import AppError, InvalidRequest, Unavailable
from data_plane.gateway.api.added_tokens import AddedTokens
from data_plane.gateway.api.chat_template import ChatTemplate
from data_plane.gateway.api.openai_messages import texts_of
from data_plane.gateway.api.openai_request import Call
from data_plane.gateway.api.tenant_thread_pool import TenantThreadPool
from data_plane.gateway.state.snapshot import Snapshot

_ENTRY_BYTES: Final = 250  # memory of an entry beside its text, approximately
_SHARE_MAX: Final = 16  # a text above this part of the cache is not cached: it would evict all others
_PRELOAD_S: Final = 0.5
_NO_TENANT: Final = ""  # tokenizers are loaded for no tenant in particular


class PromptCounter:
    """One base model's tokenizer and template. Safe to share between threads. ``cache_max_bytes`` bounds the cache of
    token counts.
    """

    def __init__(self, tokenizer_json: bytes | str, route: BaseModelRoute, cache_max_bytes: int = 0) -> None:
        self._tokenizer = Tokenizer.from_str(
            tokenizer_json if isinstance(tokenizer_json, str) else tokenizer_json.decode()
        )
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.render = ChatTemplate(route).render
        added = self._tokenizer.get_added_tokens_decoder().values()
        self._special = AddedTokens(token.content for token in added if token.special)
        independent = parts_are_independent(tokenizer_json)
        self._boundaries = AddedTokens(token.content for token in added if independent)
        self._token_counts = TokenCountCache(cache_max_bytes)

    def refuse_special_tokens(self, call: Call) -> None:
        """Refuse text that spells a special token: it would become one, and could change the speaker. Raises
        InvalidRequest.
        """
        if call.messages is None:
            return
        written = texts_of(call.messages)
        if call.tools is not None:
            written += json.dumps(call.tools, ensure_ascii=False)
        if found := self._special.first(written):
            raise InvalidRequest(
                f"The messages contain {found!r}, which is a special token of this model; remove it.",
                code="special_token",
                param="messages",
            )

    def count(self, call: Call, owner: str = "") -> list[int]:
        """Tokens of each prompt of a call, exactly as its engine will count them. A chat is one prompt. ``owner`` is
        the tenant's id, for the cache.
        """
        self.refuse_special_tokens(call)
        if call.messages is not None:
            options = call.fields.get("chat_template_kwargs", {})
            continued = call.fields.get("continue_final_message", False)
            rendered = self.render(call.messages, call.tools, continue_final_message=continued, **options)
            return [self._count_parts(rendered, owner)]
        assert call.prompts is not None
        return self._lengths(call.prompts, add_special_tokens=True)

    def _count_parts(self, text: str, owner: str) -> int:
        """Tokens of a chat. Parts whose counts are cached are not counted again."""
        parts = self._boundaries.split(text)
        total, unknown = len(parts) - 1, []
        for part in parts:
            if part:
                if (count := self._token_counts.get(owner, part)) is None:
                    unknown.append(part)
                else:
                    total += count
        if unknown:
            for part, count in zip(unknown, self._lengths(unknown, add_special_tokens=False), strict=True):
                self._token_counts.put(owner, part, count)
                total += count
        return total

    def _lengths(self, texts: list[str], *, add_special_tokens: bool) -> list[int]:
        # `encode` holds the interpreter's lock until it ends, so a long prompt in a thread would still block the loop.
        # Batches release it (tokenizers 0.23), and "fast" skips the offsets, which are not needed.
        batch = self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [len(encoded) for encoded in batch]


class TokenCountCache:
    """An LRU cache of token counts by owner and text, in about ``max_bytes`` of memory: a conversation repeats its
    earlier turns in each request. Entries belong to one tenant, because a fast count would tell another tenant what was
    sent before. Safe to share between threads.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._counts: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, owner: str, text: str) -> int | None:
        """The cached count of a text, or None."""
        with self._lock:
            if (count := self._counts.get((owner, text))) is not None:
                self._counts.move_to_end((owner, text))
            return count

    def put(self, owner: str, text: str, count: int) -> None:
        """Cache a count."""
        size_bytes = _size_bytes(text)
        with self._lock:
            if size_bytes > self._max_bytes // _SHARE_MAX or (owner, text) in self._counts:
                return
            self._counts[owner, text] = count
            self._bytes += size_bytes
            while self._bytes > self._max_bytes:
                (_, gone), _ = self._counts.popitem(last=False)
                self._bytes -= _size_bytes(gone)


def _size_bytes(text: str) -> int:
    return sys.getsizeof(text) + _ENTRY_BYTES


class _AddedToken(msgspec.Struct):
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


class _TokenizerJson(msgspec.Struct):
    """The parts of a tokenizer.json that are read; the file has megabytes more."""

    added_tokens: list[_AddedToken] = []
    pre_tokenizer: msgspec.Raw = msgspec.Raw(b"null")


def parts_are_independent(tokenizer_json: bytes | str) -> bool:
    """Whether the tokens of a text are the tokens of the parts between its added tokens, plus one for each added token.

    tokenizers splits a text at added tokens first and encodes each part alone (added_vocabulary.rs, 0.23). Exceptions:
    an added token that absorbs surrounding text or matches normalized text only, and a first part that is encoded
    differently (Metaspace).
    """
    tokenizer = msgspec.json.decode(tokenizer_json, type=_TokenizerJson)
    return b'"Metaspace"' not in bytes(tokenizer.pre_tokenizer) and not any(
        token.lstrip or token.rstrip or token.single_word or token.normalized for token in tokenizer.added_tokens
    )


class PromptCounters:
    """The prompt counters of the base models in use, built from blobs in Redis and cached. Fails closed."""

    def __init__(
        self,
        redis: Redis,
        threads: TenantThreadPool,
        *,
        inline_max_bytes: int,
        counters_max: int,
        cache_max_bytes: int,
        load_s: float,
    ) -> None:
        self._redis = redis
        self._threads = threads
        self._inline_max_bytes = inline_max_bytes
        self._counters_max = counters_max
        self._cache_max_bytes = cache_max_bytes
        self._load_s = load_s
        self._counters: OrderedDict[BaseModelRoute, PromptCounter] = OrderedDict()
        self._loading = asyncio.Lock()

    async def count(self, tenant_id: str, route: BaseModelRoute, call: Call, body_size_bytes: int) -> list[int]:
        """Tokens of each prompt of a call to a base model. Long prompts are counted in a thread, so that streams need
        not wait.
        """
        if (counter := self._counters.get(route)) is None:
            counter = await self._load(route)
        self._counters.move_to_end(route)
        if body_size_bytes <= self._inline_max_bytes:
            return counter.count(call, tenant_id)
        return await self._threads.run(tenant_id, counter.count, call, tenant_id)

    async def run_forever(self, snapshot: Snapshot) -> None:
        """Load published tokenizers in advance, so that no first request waits for one. Never returns."""
        while True:
            routes = [] if snapshot.tables is None else list(snapshot.tables.base_models.values())
            for route in routes[: self._counters_max]:
                if route not in self._counters and len(self._counters) < self._counters_max:
                    with contextlib.suppress(AppError):
                        await self._load(route)
            await asyncio.sleep(_PRELOAD_S)

    async def _load(self, route: BaseModelRoute) -> PromptCounter:
        async with self._loading:
            if found := self._counters.get(route):
                return found
            try:
                async with asyncio.timeout(self._load_s):
                    blob = await self._redis.get(redis_keys.blob(route.tokenizer_sha256))
            except (RedisError, OSError):  # TimeoutError is an OSError
                blob = None
            if blob is None:
                raise Unavailable(
                    f"The tokenizer of `{route.id}` is not available; try again in 2 s.",
                    code="tokenizer_unavailable",
                    retry_after_s=2,
                )
            counter = await self._threads.run(_NO_TENANT, PromptCounter, blob, route, self._cache_max_bytes)
            self._counters[route] = counter
            while len(self._counters) > self._counters_max:
                self._counters.popitem(last=False)
            return counter
