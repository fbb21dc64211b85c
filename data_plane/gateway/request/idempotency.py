"""Idempotency-Key on inference: a repeated request gets the first answer again and is billed once.

Fails closed: if Redis cannot store the key, the request is refused before it runs. Complete successful answers up to a
size limit are stored. A request that failed, or whose caller disconnected, may run again with the same key; one whose
answer was too large does not run again. If a gateway dies after an answer is settled and before it is stored, the key
stays in progress until its lease expires.
"""

import asyncio
import contextlib
import hashlib
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import structlog
from redis.exceptions import RedisError

from core import redis_keys
from core.errors import Conflict, InvalidRequest, Unavailable, Unprocessable
from data_plane.gateway import metrics
from data_plane.gateway.api.client_connection import Client, ResponseRecording
from data_plane.gateway.quota.lua_script import Script
from data_plane.gateway.request.replay_charge import ReplayCharge
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.state.authenticate import Caller
from data_plane.gateway.state.redis_connection import RedisConnection

_log = structlog.get_logger()
_HEADER: Final = b"idempotency-key"
_CHARS_MAX: Final = 255
_UNDO_INTERVAL_S: Final = 1.0
_TRANSIENT_HEADERS: Final = (b"x-ratelimit-", b"anthropic-ratelimit-", b"content-length", b"connection")
"""Headers that are not sent with a stored answer: they describe the moment of the first one."""


class StoredAnswer(msgspec.Struct, array_like=True):
    """A complete answer as it was sent, with its body compressed by zlib. Status 0 means
    that the answer was too large to store.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class StoredRequest(msgspec.Struct, array_like=True):
    """The Redis value of a key: the request that owns it, that request's digest, and the answer once there is one."""

    request_id: str
    request_sha256: bytes
    answer: StoredAnswer | None = None


_records: Final = msgspec.msgpack.Decoder(StoredRequest)
_encode: Final = msgspec.msgpack.encode


class Idempotency:
    """The keys in progress in this process, and the stored answers in Redis."""

    def __init__(self, redis: RedisConnection, replay_charge: ReplayCharge, settings: GatewaySettings) -> None:
        self._redis = redis
        self._replay_charge = replay_charge
        self._settings = settings
        self._script = Script("idempotent")
        self._in_progress: set[_Claim] = set()
        self._undoing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def once(self, client: Client, caller: Caller, request_id: str) -> AsyncIterator[bool]:
        """Yields True if the request must run; its answer is then stored. Yields False if it has been answered from the
        store, which is charged as one request of the minute, except to a batch's line. Raises InvalidRequest, Conflict
        while the first request is in progress, Unprocessable if the key belongs to another body, QuotaExceeded, or
        Unavailable.
        """
        name = _key_of(client)
        if name is None:
            yield True
            return
        tenant_id = caller.tenant.tenant_id
        digest = hashlib.sha256(caller.key.key_id.encode() + b"\0" + name).hexdigest()
        request_sha256 = hashlib.sha256(client.path.encode() + b"\0" + client.body_sha256).digest()
        claim = _Claim(
            redis_keys.idempotent_request(tenant_id, digest),
            redis_keys.idempotent_answers(tenant_id, of_batches=client.line is not None),
            StoredRequest(request_id, request_sha256),
        )
        answer = await self._claim(claim, only_stored=client.line is not None and client.line.only_stored)
        if answer is not None:
            if client.line is None:  # a line's id may be that of the request whose answer this is
                await self._replay_charge.charge(caller, request_id)
            metrics.IDEMPOTENT_REPLAYS.inc()
            recorded = ResponseRecording(
                0, _record_nothing, answer.status, answer.headers, bytearray(zlib.decompress(answer.body))
            )
            await client.replay(recorded, [(b"idempotent-replayed", b"true")])
            yield False
            return
        client.recording = ResponseRecording(
            self._settings.idempotency_answer_max_bytes,
            lambda recorded: self._store_answer(claim, recorded, runs_again=client.line is not None),
        )
        self._in_progress.add(claim)
        try:
            yield True
        finally:
            self._in_progress.discard(claim)
            if not claim.answered:
                await self._change(claim, "forget")

    async def run_forever(self) -> None:
        """Renew the leases of keys in progress until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._settings.idempotency_lease_s / 3)
                await asyncio.gather(*(self._change(claim, "renew") for claim in tuple(self._in_progress)))
        finally:
            for task in self._undoing:
                task.cancel()

    async def _claim(self, claim: "_Claim", *, only_stored: bool) -> StoredAnswer | None:
        """None where this request owns the key now, else the stored answer of the request that owns it."""
        lease_ms = int(self._settings.idempotency_lease_s * 1000)
        command = ("GET", claim.key) if only_stored else ("SET", claim.key, claim.value, "NX", "GET", "PX", lease_ms)
        try:
            async with asyncio.timeout(self._settings.idempotency_deadline_ms / 1000):
                stored = await self._redis.call(*command)
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            task = asyncio.create_task(self._undo(claim))
            self._undoing.add(task)
            task.add_done_callback(self._undoing.discard)
            raise Unavailable(
                "The Idempotency-Key cannot be stored now, so the request was not run.",
                code="idempotency_unavailable",
                retry_after_s=1,
            ) from error
        if stored is None and only_stored:
            raise Conflict("No answer to this line is stored.", code="request_not_run", retryable=False)
        if stored is None:
            return None
        first = _records.decode(stored)
        if first.request_sha256 != claim.record.request_sha256:
            raise Unprocessable(
                "Idempotency-Key: it was used for another request; use a new key for a new request.",
                code="idempotency_key_reused",
                param="Idempotency-Key",
            )
        if first.answer is None:
            raise Conflict(
                "A request with this Idempotency-Key is still in progress; try again.",
                code="request_in_progress",
                param="Idempotency-Key",
                retry_after_s=1,
            )
        if first.answer.status == 0:
            raise Conflict(
                "The answer to this Idempotency-Key was too large to store, and it is not run again; use a new key.",
                code="idempotent_answer_not_kept",
                param="Idempotency-Key",
                retryable=False,
            )
        return first.answer

    async def _undo(self, claim: "_Claim") -> None:
        """Redis may have set the key, or may still set it, although its answer did not arrive. Delete it, so that the
        caller, which was asked to retry, does not find its key in progress. Tried until the lease would have expired.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.idempotency_lease_s):
                while True:
                    with contextlib.suppress(RedisError, OSError):
                        await self._run(claim, "forget")
                        return
                    await asyncio.sleep(_UNDO_INTERVAL_S)

    async def _store_answer(self, claim: "_Claim", recorded: ResponseRecording, *, runs_again: bool) -> None:
        """Store a whole answer. ``runs_again``: one that is too large is forgotten, as the line then runs for free."""
        if recorded.too_large and runs_again:
            return
        headers = [(name, value) for name, value in recorded.headers if not name.startswith(_TRANSIENT_HEADERS)]
        answer = (
            StoredAnswer(0, [], b"")
            if recorded.too_large
            else StoredAnswer(recorded.status, headers, zlib.compress(recorded.body, 1))
        )
        claim.answered = True
        record = StoredRequest(claim.record.request_id, claim.record.request_sha256, answer)
        if not await self._change(claim, "keep", _encode(record)):
            metrics.IDEMPOTENT_ANSWERS_LOST.inc()

    async def _change(self, claim: "_Claim", operation: str, record: bytes = b"") -> bool:
        """Change the key in Redis. False where Redis did not do it; the key then stays until its lease expires."""
        try:
            async with asyncio.timeout(self._settings.idempotency_deadline_ms / 1000):
                return await self._run(claim, operation, record)
        except (RedisError, OSError) as error:
            _log.warning("idempotency key not changed, its lease expires", change=operation, error=repr(error))
            return False

    async def _run(self, claim: "_Claim", operation: str, record: bytes = b"") -> bool:
        settings = self._settings
        life_ms = (
            settings.idempotency_expires_s * 1000 if operation == "keep" else int(settings.idempotency_lease_s * 1000)
        )
        done = await self._script(
            self._redis,
            (claim.key, claim.answers),
            (operation, claim.value, life_ms, record, settings.idempotency_answers_max),
        )
        return bool(done)


class _Claim:
    """One key in progress."""

    def __init__(self, key: str, answers: str, record: StoredRequest) -> None:
        self.key = key
        self.answers = answers
        self.record = record
        self.value = _encode(record)
        self.answered = False


def _key_of(client: Client) -> bytes | None:
    shown = [value for name, value in client.request_headers if name == _HEADER]
    if not shown:
        return None
    if len(shown) > 1 or not 1 <= len(shown[0]) <= _CHARS_MAX or not all(32 < byte < 127 for byte in shown[0]):
        raise InvalidRequest(
            f"Send the header `Idempotency-Key` once, with 1 to {_CHARS_MAX} printable ASCII characters.",
            code="invalid_value",
            param="Idempotency-Key",
        )
    return shown[0]


async def _record_nothing(_recorded: ResponseRecording) -> None:
    """A replayed answer is not recorded again."""
