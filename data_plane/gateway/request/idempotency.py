"""Idempotency-Key on inference: a request that is sent again is answered with the first answer, and charged once.

Fails closed: where Redis cannot remember the key, the request is refused before it runs. Kept are whole good answers
up to a size; one that failed or was given up by its caller may be run again with the same key, and one that was too
large is not run again. A gateway that dies between an answer's settlement and its keeping leaves the key to its lease.
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
_AGAIN_S: Final = 1.0
_OWN: Final = (b"x-ratelimit-", b"anthropic-ratelimit-", b"content-length", b"connection")
"""Headers of an answer that are not given again: they told of that moment."""


class Answer(msgspec.Struct, array_like=True):
    """A whole answer as it went out, its body packed by zlib; the status is 0 for one that was too large to keep."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Record(msgspec.Struct, array_like=True):
    """What Redis holds under a key: whose request it is, what its body was, and the answer once there is one."""

    request_id: str
    request_sha256: bytes
    answer: Answer | None = None


_records: Final = msgspec.msgpack.Decoder(Record)
_encode: Final = msgspec.msgpack.encode


class Idempotency:
    """The keys in flight in this process, and the answers in Redis."""

    def __init__(self, line: RedisConnection, toll: ReplayCharge, settings: GatewaySettings) -> None:
        self._line = line
        self._toll = toll
        self._settings = settings
        self._script = Script("idempotent")
        self._running: set[_Claim] = set()
        self._undoing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def once(self, client: Client, caller: Caller, request_id: str) -> AsyncIterator[bool]:
        """True: run the request, and its answer is kept. False: it has been answered, with what was kept, for one
        request of its minute. Raises InvalidRequest, Conflict while the first is in flight, Unprocessable for another
        body, QuotaExceeded, or Unavailable.
        """
        name = _name(client)
        if name is None:
            yield True
            return
        tenant_id = caller.tenant.tenant_id
        digest = hashlib.sha256(caller.key.key_id.encode() + b"\0" + name).hexdigest()
        same = hashlib.sha256(client.path.encode() + b"\0" + client.body_sha256).digest()
        claim = _Claim(tenant_id, redis_keys.idempotent_request(tenant_id, digest), Record(request_id, same))
        answer = await self._claim(claim)
        if answer is not None:
            await self._toll.take(caller, request_id)
            metrics.IDEMPOTENT_REPLAYS.inc()
            recorded = ResponseRecording(
                0, _nothing, answer.status, answer.headers, bytearray(zlib.decompress(answer.body))
            )
            await client.replay(recorded, [(b"idempotent-replayed", b"true")])
            yield False
            return
        client.recording = ResponseRecording(
            self._settings.idempotency_answer_max_bytes, lambda recorded: self._keep(claim, recorded)
        )
        self._running.add(claim)
        try:
            yield True
        finally:
            self._running.discard(claim)
            if not claim.answered:
                await self._change(claim, "forget")

    async def run_forever(self) -> None:
        """Renew the leases of keys in flight, for ever."""
        try:
            while True:
                await asyncio.sleep(self._settings.idempotency_lease_s / 3)
                await asyncio.gather(*(self._change(claim, "renew") for claim in tuple(self._running)))
        finally:
            for task in self._undoing:
                task.cancel()

    async def _claim(self, claim: "_Claim") -> Answer | None:
        """None where the key is ours now, or the answer that its request has had."""
        lease_ms = int(self._settings.idempotency_lease_s * 1000)
        try:
            async with asyncio.timeout(self._settings.idempotency_deadline_ms / 1000):
                found = await self._line.call("SET", claim.key, claim.value, "NX", "GET", "PX", lease_ms)
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            task = asyncio.create_task(self._undo(claim))
            self._undoing.add(task)
            task.add_done_callback(self._undoing.discard)
            raise Unavailable(
                "The Idempotency-Key cannot be remembered now, so the request was not run.",
                code="idempotency_unavailable",
                retry_after_s=1,
            ) from error
        if found is None:
            return None
        first = _records.decode(found)
        if first.request_sha256 != claim.record.request_sha256:
            raise Unprocessable(
                "Idempotency-Key: it was used for another request; use a new key for a new request.",
                code="idempotency_key_reused",
                param="Idempotency-Key",
            )
        if first.answer is None:
            raise Conflict(
                "A request with this Idempotency-Key is still in work; try again.",
                code="request_in_progress",
                param="Idempotency-Key",
                retry_after_s=1,
            )
        if first.answer.status == 0:
            raise Conflict(
                "The answer to this Idempotency-Key was too large to be kept, and it is not run again; use a new key.",
                code="idempotent_answer_not_kept",
                param="Idempotency-Key",
                retryable=False,
            )
        return first.answer

    async def _undo(self, claim: "_Claim") -> None:
        """The key may have been taken, or be taken yet, although no answer came: its caller, who was told to come
        again, should not find it in work. Tried for as long as that would last.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.idempotency_lease_s):
                while True:
                    with contextlib.suppress(RedisError, OSError):
                        await self._run(claim, "forget")
                        return
                    await asyncio.sleep(_AGAIN_S)

    async def _keep(self, claim: "_Claim", recorded: ResponseRecording) -> None:
        headers = [(name, value) for name, value in recorded.headers if not name.startswith(_OWN)]
        answer = (
            Answer(0, [], b"")
            if recorded.too_large
            else Answer(recorded.status, headers, zlib.compress(recorded.body, 1))
        )
        claim.answered = True
        record = Record(claim.record.request_id, claim.record.request_sha256, answer)
        if not await self._change(claim, "keep", _encode(record)):
            metrics.IDEMPOTENT_ANSWERS_LOST.inc()

    async def _change(self, claim: "_Claim", what: str, record: bytes = b"") -> bool:
        """False where Redis did not do it. The key is then left to its lease."""
        try:
            async with asyncio.timeout(self._settings.idempotency_deadline_ms / 1000):
                return await self._run(claim, what, record)
        except (RedisError, OSError) as error:
            _log.warning("an Idempotency-Key is left to its lease", wanted=what, error=repr(error))
            return False

    async def _run(self, claim: "_Claim", what: str, record: bytes = b"") -> bool:
        settings = self._settings
        life_ms = settings.idempotency_expires_s * 1000 if what == "keep" else int(settings.idempotency_lease_s * 1000)
        done = await self._script(
            self._line,
            (claim.key, redis_keys.idempotent_answers(claim.tenant_id)),
            (what, claim.value, life_ms, record, settings.idempotency_answers_max),
        )
        return bool(done)


class _Claim:
    """One key in flight."""

    def __init__(self, tenant_id: str, key: str, record: Record) -> None:
        self.tenant_id = tenant_id
        self.key = key
        self.record = record
        self.value = _encode(record)
        self.answered = False


def _name(client: Client) -> bytes | None:
    shown = [value for name, value in client.request_headers if name == _HEADER]
    if not shown:
        return None
    if len(shown) > 1 or not 1 <= len(shown[0]) <= _CHARS_MAX or not all(32 < byte < 127 for byte in shown[0]):
        raise InvalidRequest(
            f"Header `Idempotency-Key` must be given once, as 1 to {_CHARS_MAX} printable ASCII characters.",
            code="invalid_value",
            param="Idempotency-Key",
        )
    return shown[0]


async def _nothing(_recorded: ResponseRecording) -> None:
    """What has been recorded is not recorded again."""
