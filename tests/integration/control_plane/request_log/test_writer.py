"""The writer of the request log: killed before and after each of its calls to Redis and S3, and beside others."""

from collections.abc import Callable
from typing import Any

import pytest

from control_plane.request_log.writer import RequestLogWriter, written_before
from core import clock, redis_keys
from core.contracts.request_log import LoggedRequest
from core.ids import new_id
from tests.fixtures.control_plane.logged_requests import append, append_refusals, served, stored_ids

DAY_MS = 86_400_000
CALLS_MAX = 60


class Killed(BaseException):
    """The process died here."""


class Mortal:
    """Passes calls on, and dies before or after the nth of all that share ``calls``. A pipeline is one call."""

    def __init__(self, real: Any, calls: list[str], at: int, *, after: bool) -> None:
        self._real, self._calls, self._at, self._after = real, calls, at, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name == "pipeline":
            return lambda **options: Mortal(found(**options), self._calls, self._at, after=self._after)
        if name in ("xack", "xdel") or not callable(found):  # queued in the pipeline
            return found
        return self._dying(name, found)

    def __enter__(self) -> "Mortal":
        return self

    def __exit__(self, *_error: object) -> None:
        self._real.reset()

    def _dying(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            self._calls.append(name)
            dies = len(self._calls) == self._at
            if dies and not self._after:
                raise Killed(name)
            try:
                return call(*arguments, **options)
            finally:
                if dies:
                    raise Killed(name)

        return run


def writer(redis, bucket, *, entries_max: int = 3) -> RequestLogWriter:
    return RequestLogWriter(redis, bucket, entries_max=entries_max, dead_after_ms=0)


def run_to_end(one: RequestLogWriter) -> None:
    while one.run_once():
        pass


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_call_loses_no_row_and_doubles_none(redis, bucket, after):
    """Seven rows in three batches, one across midnight; the next process may have another size of batches."""
    killed_at = 0
    for at in range(1, CALLS_MAX):
        redis.delete(redis_keys.REQUEST_LOG)
        bucket.delete([each.key for each in bucket.objects("requests/")])
        today, yesterday = served(), served(settled_at_ms=clock.now_ms() - DAY_MS)
        wanted = append(redis, served(), today, yesterday, served(), served(), served(), served())
        calls: list[str] = []
        try:
            run_to_end(writer(Mortal(redis, calls, at, after=after), Mortal(bucket, calls, at, after=after)))
        except Killed:
            killed_at += 1
        run_to_end(writer(redis, bucket, entries_max=2))
        assert stored_ids(bucket) == sorted(wanted), calls
        assert redis.xlen(redis_keys.REQUEST_LOG) == 0
        if len(calls) < at:
            break
    assert killed_at == len(calls) > 12


def test_a_paused_writer_that_goes_on_after_another_took_its_batch_doubles_nothing(redis, bucket):
    wanted = append(redis, served(), served(), served(), served())
    paused = writer(redis, bucket)
    assert paused.run_once()  # makes the group
    batch = paused._read(paused._consumer, ">", count=3)
    run_to_end(writer(redis, bucket))
    paused._write(batch)
    run_to_end(paused)
    assert stored_ids(bucket) == sorted(wanted)


def test_while_s3_is_away_entries_wait_and_are_stored_afterwards(redis, bucket, monkeypatch):
    wanted = append(redis, served(), served())
    one = writer(redis, bucket)

    def refuse(_key: str, _body: bytes) -> None:
        raise OSError("away")

    with monkeypatch.context() as away:
        away.setattr(bucket, "put", refuse)
        with pytest.raises(OSError, match="away"):
            run_to_end(one)
    assert redis.xlen(redis_keys.REQUEST_LOG) == 2
    run_to_end(one)
    assert stored_ids(bucket) == sorted(wanted)


def test_an_entry_that_cannot_be_read_blocks_no_other(redis, bucket):
    redis.xadd(redis_keys.REQUEST_LOG, {"event": b"{"})
    redis.xadd(redis_keys.REQUEST_LOG, {"refusals": b"\xff"})
    wanted = append(redis, served())
    run_to_end(writer(redis, bucket))
    assert stored_ids(bucket) == wanted
    assert redis.xlen(redis_keys.REQUEST_LOG) == 0


def test_an_entry_that_redis_dropped_while_it_was_read_leaves_the_rest_of_its_batch(redis, bucket):
    one = writer(redis, bucket)
    assert one.run_once()  # makes the group
    _, wanted = append(redis, served(), served())
    [(dropped, _), _] = one._read(one._consumer, ">", count=3)
    redis.xdel(redis_keys.REQUEST_LOG, dropped)
    run_to_end(one)
    assert stored_ids(bucket) == [wanted]


def test_refusals_lie_beside_requests_and_say_how_many_they_stand_for(redis, bucket):
    row = LoggedRequest(request_id=new_id("req"), time=clock.now(), outcome="refused", code="overloaded", count=9)
    append_refusals(redis, row)
    run_to_end(writer(redis, bucket))
    assert stored_ids(bucket) == [row.request_id]


def test_what_is_read_and_not_written_bounds_what_counts_as_written(redis, bucket):
    one = writer(redis, bucket)
    assert written_before(redis) == (0, 0)
    append(redis, served(), served(), served())
    run_to_end(one)
    all_written = written_before(redis)
    assert all_written > (0, 0)
    append(redis, served(), served())
    [(first, _), *_] = one._read(one._consumer, ">", count=1)
    assert all_written <= written_before(redis) < (int(first.split(b"-")[0]), int(first.split(b"-")[1]) + 1)


def test_a_consumer_that_has_no_process_any_longer_is_removed(redis, bucket, monkeypatch):
    append(redis, served())
    run_to_end(writer(redis, bucket))
    monkeypatch.setattr("control_plane.request_log.writer._GONE_MS", 0)
    latest = writer(redis, bucket)
    run_to_end(latest)
    consumers = redis.xinfo_consumers(redis_keys.REQUEST_LOG, redis_keys.REQUEST_LOG_GROUP)
    assert [each["name"].decode() for each in consumers] == [latest._consumer]
