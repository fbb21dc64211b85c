"""The usage stream in Redis as billing sees it: read, reclaim, acknowledge, set aside, trim, measure; nothing here
knows what an event means.

An entry leaves the stream's pending list only by an acknowledgement or together with its copy among the dead letters.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec
import redis as redis_client

from core import redis_keys

FIELD: Final = b"event"
_GROUP: Final = redis_keys.USAGE_GROUP.encode()

# Both steps or neither, and once only, also when two workers give up on the same entry.
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


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the stream; ``payload`` is None when it lacks the field that events lie in."""

    id: bytes
    payload: bytes | None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A page of reclaimed entries, where to go on, and ids that were pending but are no longer in the stream."""

    entries: list[Entry]
    cursor: bytes
    lost: list[bytes]


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """Events not yet read, read but not yet acknowledged, and set aside; ``length`` counts also what is in the ledger
    and still lies in the stream.
    """

    length: int
    unread: int
    pending: int
    dead_letters: int

    @property
    def unprocessed(self) -> int:
        """Events that are not in the ledger yet and still may get there by themselves."""
        return self.unread + self.pending


class UsageStream:
    """One consumer's view. The client must speak RESP2 and return bytes."""

    def __init__(self, redis: redis_client.Redis, consumer: str) -> None:
        self._redis = redis
        self._consumer = consumer

    def ensure_group(self) -> bool:
        """Create stream and group where they are missing, reading from the very first entry: after a restore, events
        that are in the ledger already are recognised there. Returns whether they were: a Redis that is new, or empty.
        """
        made = False
        with contextlib.suppress(redis_client.ResponseError):  # BUSYGROUP: it exists
            self._redis.xgroup_create(redis_keys.USAGE_STREAM, redis_keys.USAGE_GROUP, id="0", mkstream=True)
            made = True
        read_groups(self._redis)  # any other reason would show here
        return made

    def read(self, *, count: int, block_ms: int | None) -> list[Entry]:
        """New entries, waiting for the first at most ``block_ms``; None does not wait."""
        reply = cast(
            list[tuple[bytes, list[Any]]],
            self._redis.xreadgroup(
                redis_keys.USAGE_GROUP, self._consumer, {redis_keys.USAGE_STREAM: ">"}, count=count, block=block_ms
            ),
        )
        return [_entry(*raw) for _, entries in reply for raw in entries]

    def reclaim(self, *, cursor: bytes, idle_ms: int, count: int) -> Claim:
        """Take over entries that nobody acknowledged for ``idle_ms``. A page may be empty while the cursor goes on."""
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
        return Claim(entries=[_entry(*raw) for raw in entries], cursor=following, lost=lost)

    def attempts(self, ids: Sequence[bytes]) -> dict[bytes, int]:
        """How often each pending entry was delivered; entries that are not pending are left out."""
        pipeline = self._redis.pipeline(transaction=False)
        for entry_id in ids:
            pipeline.xpending_range(
                redis_keys.USAGE_STREAM, redis_keys.USAGE_GROUP, min=entry_id, max=entry_id, count=1
            )
        return {row["message_id"]: row["times_delivered"] for rows in pipeline.execute() for row in rows}

    def acknowledge(self, ids: Sequence[bytes]) -> None:
        """Only after the transaction that recorded them has committed."""
        if ids:
            self._redis.xack(redis_keys.USAGE_STREAM, redis_keys.USAGE_GROUP, *ids)

    def set_aside(self, entry: Entry, *, about: Mapping[str, str], dead_letters_max: int) -> bool:
        """Move an entry to the dead letters, with what is known about it. False when those are full."""
        fields: list[bytes | str] = [FIELD, entry.payload or b"", "id", entry.id]
        for name, value in about.items():
            fields += [name, value]
        moved = self._redis.eval(
            _SET_ASIDE, 2, redis_keys.USAGE_STREAM, redis_keys.USAGE_DEAD_LETTERS,
            redis_keys.USAGE_GROUP, entry.id, dead_letters_max, *fields,
        )  # fmt: skip
        return int(moved) != -1

    def put_back(self, *, count: int) -> int:
        """Give up to ``count`` dead letters, oldest first, another chance at the end of the stream; how many it was."""
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
        """Drop the acknowledged entries from the front of the stream; how many. Does nothing while another group reads.
        Gateways are told up to where entries are in the ledger: they keep what is not.

        The last delivered id is read before the pending ones: entries delivered in between lie behind it and stay.
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


def read_groups(redis: redis_client.Redis) -> list[dict[str, Any]]:
    """What Redis knows of the stream's groups. Raises ResponseError when there is no stream."""
    return redis.xinfo_groups(redis_keys.USAGE_STREAM)


def read_backlog(redis: redis_client.Redis) -> Backlog:
    """How much lies in the stream. Works with clients that return bytes and with those that return text."""
    dead_letters = redis.xlen(redis_keys.USAGE_DEAD_LETTERS)
    length = redis.xlen(redis_keys.USAGE_STREAM)
    groups = read_groups(redis) if length or redis.exists(redis_keys.USAGE_STREAM) else []
    for group in groups:
        name = group["name"]
        if (name.decode() if isinstance(name, bytes) else name) == redis_keys.USAGE_GROUP:
            unread = group["lag"] if group["lag"] is not None else _count_after(redis, group["last-delivered-id"])
            return Backlog(length=length, unread=unread, pending=group["pending"], dead_letters=dead_letters)
    # no group yet: nothing was read
    return Backlog(length=length, unread=length, pending=0, dead_letters=dead_letters)


def _count_after(redis: redis_client.Redis, last_id: bytes | str) -> int:
    """Redis cannot tell the lag once entries behind the group were deleted by hand; then they are counted."""
    total, page = 0, 1_000
    after = last_id.decode() if isinstance(last_id, bytes) else last_id
    while rows := cast(list[Any], redis.xrange(redis_keys.USAGE_STREAM, min=f"({after}", count=page)):
        total += len(rows)
        last = rows[-1][0]
        after = last.decode() if isinstance(last, bytes) else last
    return total


def _entry(entry_id: bytes, fields: Mapping[bytes, bytes] | None) -> Entry:
    return Entry(id=entry_id, payload=(fields or {}).get(FIELD))


def _order(entry_id: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds), int(sequence)


def _after(entry_id: bytes) -> bytes:
    milliseconds, sequence = _order(entry_id)
    return b"%d-%d" % (milliseconds, sequence + 1)
