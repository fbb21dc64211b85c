"""The usage stream in Redis as billing sees it: read, reclaim, acknowledge, dead-letter, trim and measure entries, and
decode an entry into a usage event that can be true. What an event costs, and how it is recorded, is not here.

An entry leaves the stream's pending list only by an acknowledgment or together with its copy among the dead letters.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

import msgspec
import redis as redis_client

from billing.settings import EVENT_DURATION_MS_MAX, EVENT_KV_PAGE_MS_MAX, EVENT_TOKENS_MAX
from core import redis_keys
from core.contracts.usage import UsageEvent

FIELD: Final = b"event"
RefusalCode = Literal["undecodable", "impossible", "early", "too_late", "unpriced", "conflict", "unstorable"]

_UNIX_MS_MAX = 4_102_444_800_000  # 2100-01-01: a number beyond it is not in milliseconds
_GROUP: Final = redis_keys.USAGE_GROUP.encode()

# Both steps happen or neither, and only once, also when two workers give up on the same entry.
_SET_ASIDE: Final = """
if redis.call('XLEN', KEYS[2]) >= tonumber(ARGV[3]) then return -1 end
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 4))
return 1
"""
_PUT_BACK: Final = """
if redis.call('XDEL', KEYS[2], ARGV[1]) == 0 then return 0 end
redis.call('XADD', KEYS[1], '*', 'event', ARGV[2])
return 1
"""


class StreamEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the stream. ``payload`` is None when the entry lacks the field "event"."""

    id: bytes
    payload: bytes | None


class ReclaimedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of reclaimed entries, where to go on, and ids that were pending but are no longer in the stream."""

    entries: list[StreamEntry]
    cursor: bytes
    lost: list[bytes]


class StreamBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """``unread`` events, ``pending`` ones (read but not acknowledged) and ``dead_letters``. ``length`` also counts the
    entries that are recorded in the ledger and not trimmed yet.
    """

    length: int
    unread: int
    pending: int
    dead_letters: int

    @property
    def unprocessed(self) -> int:
        """Events that are not in the ledger yet and can still get there without a redrive."""
        return self.unread + self.pending


class Refusal(msgspec.Struct, frozen=True):
    """Why an event was not recorded: ``code`` for metrics, ``reason`` for people."""

    code: RefusalCode
    reason: str


class UsageStream:
    """One consumer's view. The client must speak RESP2 and return bytes."""

    def __init__(self, redis: redis_client.Redis, consumer: str) -> None:
        self._redis = redis
        self._consumer = consumer

    def ensure_group(self) -> bool:
        """Create the stream and the group if they are missing. The group reads from the first entry; after a restore,
        the ledger recognizes events that it already has. Returns True if the group was created, that is, if Redis was
        new or empty.
        """
        made = False
        with contextlib.suppress(redis_client.ResponseError):  # BUSYGROUP: it exists
            self._redis.xgroup_create(redis_keys.USAGE_STREAM, redis_keys.USAGE_GROUP, id="0", mkstream=True)
            made = True
        read_groups(self._redis)  # raises for any other reason
        return made

    def read(self, *, count: int, block_ms: int | None) -> list[StreamEntry]:
        """Return new entries. Waits at most ``block_ms`` for the first one; None does not wait."""
        reply = cast(
            list[tuple[bytes, list[Any]]],
            self._redis.xreadgroup(
                redis_keys.USAGE_GROUP, self._consumer, {redis_keys.USAGE_STREAM: ">"}, count=count, block=block_ms
            ),
        )
        return [_entry(*raw) for _, entries in reply for raw in entries]

    def reclaim(self, *, cursor: bytes, idle_ms: int, count: int) -> ReclaimedPage:
        """Take over entries not acknowledged for ``idle_ms``. A page may be empty although more pages follow."""
        following, entries, lost = cast(
            tuple[bytes, list[Any], list[bytes]],
            self._redis.xautoclaim(
                redis_keys.USAGE_STREAM,
                redis_keys.USAGE_GROUP,
                self._consumer,
                min_idle_time=idle_ms,
                start_id=cursor,
                count=count,
            ),
        )
        return ReclaimedPage(entries=[_entry(*raw) for raw in entries], cursor=following, lost=lost)

    def attempts(self, ids: Sequence[bytes]) -> dict[bytes, int]:
        """Return how often each pending entry was delivered. Entries that are not pending are left out."""
        pipeline = self._redis.pipeline(transaction=False)
        for entry_id in ids:
            pipeline.xpending_range(
                redis_keys.USAGE_STREAM, redis_keys.USAGE_GROUP, min=entry_id, max=entry_id, count=1
            )
        return {row["message_id"]: row["times_delivered"] for rows in pipeline.execute() for row in rows}

    def acknowledge(self, ids: Sequence[bytes]) -> None:
        """Acknowledge entries. Call this only after the transaction that recorded them has committed."""
        if ids:
            self._redis.xack(redis_keys.USAGE_STREAM, redis_keys.USAGE_GROUP, *ids)

    def dead_letter(self, entry: StreamEntry, *, about: Mapping[str, str], dead_letters_max: int) -> bool:
        """Move an entry to the dead letters, with the fields of ``about``. Returns False when they are full."""
        fields: list[bytes | str] = [FIELD, entry.payload or b"", "id", entry.id]
        for name, value in about.items():
            fields += [name, value]
        moved = self._redis.eval(
            _SET_ASIDE, 2, redis_keys.USAGE_STREAM, redis_keys.USAGE_DEAD_LETTERS,
            redis_keys.USAGE_GROUP, entry.id, dead_letters_max, *fields,
        )  # fmt: skip
        return int(moved) != -1

    def redrive(self, *, count: int) -> int:
        """Move up to ``count`` dead letters, oldest first, to the end of the stream. Returns how many were moved."""
        letters = cast(
            list[tuple[bytes, dict[bytes, bytes]]], self._redis.xrange(redis_keys.USAGE_DEAD_LETTERS, count=count)
        )
        return sum(
            int(
                self._redis.eval(
                    _PUT_BACK, 2, redis_keys.USAGE_STREAM, redis_keys.USAGE_DEAD_LETTERS, letter_id, fields[FIELD]
                )
            )
            for letter_id, fields in letters
        )

    def trim(self) -> int:
        """Delete acknowledged entries from the front of the stream and return how many. Deletes nothing while another
        group reads. Also publishes the id below which all entries are in the ledger: gateways keep the later ones.

        The last delivered id is read before the pending entries, so that entries delivered in between stay.
        """
        groups = read_groups(self._redis)
        delivered = next((group["last-delivered-id"] for group in groups if group["name"] == _GROUP), None)
        if delivered is None:
            return 0
        pending = self._redis.xpending(redis_keys.USAGE_STREAM, redis_keys.USAGE_GROUP)
        oldest_needed, recorded_below = delivered, _after(delivered)
        if pending["pending"]:
            oldest_needed = min(delivered, pending["min"], key=_order)
            recorded_below = min(recorded_below, pending["min"], key=_order)
        self._redis.set(redis_keys.USAGE_RECORDED, recorded_below)
        if len(groups) != 1:
            return 0
        return self._redis.xtrim(redis_keys.USAGE_STREAM, minid=oldest_needed, approximate=False)


def decode_event(payload: bytes | None) -> UsageEvent | Refusal:
    """Decode the event in ``payload``, or return why it is refused. Unknown fields are ignored."""
    if payload is None:
        return Refusal("undecodable", 'the entry has no field "event"')
    try:
        event = msgspec.json.decode(payload, type=UsageEvent)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Refusal("undecodable", str(error))
    problem = _find_problem(event)
    return event if problem is None else Refusal("impossible", problem)


def read_groups(redis: redis_client.Redis) -> list[dict[str, Any]]:
    """Return the consumer groups of the stream. Raises ``ResponseError`` when there is no stream."""
    return redis.xinfo_groups(redis_keys.USAGE_STREAM)


def read_backlog(redis: redis_client.Redis) -> StreamBacklog:
    """Measure the stream. Works with clients that return bytes and with clients that return text."""
    dead_letters = redis.xlen(redis_keys.USAGE_DEAD_LETTERS)
    length = redis.xlen(redis_keys.USAGE_STREAM)
    groups = read_groups(redis) if length or redis.exists(redis_keys.USAGE_STREAM) else []
    for group in groups:
        name = group["name"]
        if (name.decode() if isinstance(name, bytes) else name) == redis_keys.USAGE_GROUP:
            unread = group["lag"] if group["lag"] is not None else _count_after(redis, group["last-delivered-id"])
            return StreamBacklog(length=length, unread=unread, pending=group["pending"], dead_letters=dead_letters)
    # no group yet: nothing was read
    return StreamBacklog(length=length, unread=length, pending=0, dead_letters=dead_letters)


def _count_after(redis: redis_client.Redis, last_id: bytes | str) -> int:
    """Count the entries after ``last_id``. Needed because Redis does not know the lag after entries were deleted."""
    total, page = 0, 1_000
    after = last_id.decode() if isinstance(last_id, bytes) else last_id
    while rows := cast(list[Any], redis.xrange(redis_keys.USAGE_STREAM, min=f"({after}", count=page)):
        total += len(rows)
        last = rows[-1][0]
        after = last.decode() if isinstance(last, bytes) else last
    return total


def _entry(entry_id: bytes, fields: Mapping[bytes, bytes] | None) -> StreamEntry:
    return StreamEntry(id=entry_id, payload=(fields or {}).get(FIELD))


def _order(entry_id: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds), int(sequence)


def _after(entry_id: bytes) -> bytes:
    milliseconds, sequence = _order(entry_id)
    return b"%d-%d" % (milliseconds, sequence + 1)


def _find_problem(event: UsageEvent) -> str | None:
    """Return the first value of the event that cannot be true, or None."""
    for name in ("request_id", "tenant_id", "base_model"):
        if not getattr(event, name):
            return f"{name} is empty"
    limits = {
        "input_tokens": EVENT_TOKENS_MAX,
        "cached_tokens": event.input_tokens,
        "aborted_prefill_tokens": event.input_tokens,
        "output_tokens": EVENT_TOKENS_MAX,
        "kv_page_ms": EVENT_KV_PAGE_MS_MAX,
        "started_at_ms": _UNIX_MS_MAX,
        "settled_at_ms": _UNIX_MS_MAX,
        "first_token_ms": EVENT_DURATION_MS_MAX,
        "duration_ms": EVENT_DURATION_MS_MAX,
        "adapter_load_ms": EVENT_DURATION_MS_MAX,
        "stall_ms": EVENT_DURATION_MS_MAX,
    }
    for name, limit in limits.items():
        if not 0 <= (value := getattr(event, name) or 0) <= limit:
            return f"{name} is {value}; it lies between 0 and {limit}"
    return None
