"""The journal on a real disk: accepted records are read back however the file ends, and its bounds hold."""

import asyncio
import contextlib
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.usage import UsageEvent
from core.ids import new_id
from data_plane.gateway import metrics
from data_plane.gateway.quota.consumption import Used
from data_plane.gateway.quota.reservation import Settlement
from data_plane.gateway.settlement import journal as journal_module
from data_plane.gateway.settlement.journal import (
    Journal,
    JournalRecord,
    encode_record,
    lock,
    lock_file,
    read_records,
    segments,
)
from data_plane.gateway.settlement.wiring import redis_name


def settlement(tokens: int = 3) -> Settlement:
    request_id = new_id("req")
    event = UsageEvent(
        request_id=request_id, tenant_id="tn_1", key_id="key_1", base_model="m", adapter_id=None, revision_id=None,
        replica_id="rep_one", outcome="done", started_at_ms=1, settled_at_ms=2, input_tokens=tokens, cached_tokens=0,
        output_tokens=0, kv_page_ms=0,
    )  # fmt: skip
    used = Used(input_tokens=tokens, cost_nanos=2**52)
    return Settlement(request_id=request_id, tenant_id="tn_1", replica_id="rep_one", used=used, event=event)


def on_disk(folder, name="jr_1") -> list[JournalRecord]:
    return [record for path in segments(folder, name) for record in read_records(path.read_bytes())]


@contextlib.asynccontextmanager
async def journal(folder, **bounds: int):
    made = Journal(folder, "jr_1", **{"segment_max_bytes": 4096, "bytes_max": 65_536, **bounds})
    made.open()
    yield made
    await made.close()


RECORDS = [JournalRecord(settlement=settlement(n)) for n in range(3)] + [JournalRecord(done="req_1")]
RAW = b"".join(map(encode_record, RECORDS))


def test_records_are_read_back_unchanged():
    assert list(read_records(RAW)) == RECORDS


@given(cut=st.integers(0, len(RAW) - 1))
def test_a_truncated_file_gives_its_complete_records(cut):
    whole = list(read_records(RAW[:cut]))
    assert whole == RECORDS[: len(whole)]
    assert sum(len(encode_record(record)) for record in RECORDS[: len(whole) + 1]) > cut


@given(at=st.integers(0, len(RAW) - 1), bit=st.integers(0, 7))
def test_a_damaged_record_is_never_taken_for_a_settlement(at, bit):
    damaged = bytearray(RAW)
    damaged[at] ^= 1 << bit
    found = list(read_records(bytes(damaged)))
    assert found == RECORDS[: len(found)]
    assert len(found) < len(RECORDS)


async def test_flushed_records_survive_the_death_of_the_process(tmp_path):
    async with journal(tmp_path) as journaling:
        first, second = settlement(), settlement()
        journaling.append(first)
        journaling.append(second)
        await journaling.flush()
        journaling.done(first.request_id)
        await journaling.flush()
        lines = on_disk(tmp_path)
        assert [record.settlement for record in lines if record.settlement] == [first, second]
        assert [record.done for record in lines if record.done] == [first.request_id]
        assert not journaling.holds(first.request_id)
        assert journaling.holds(second.request_id)
    assert [record.settlement for record in on_disk(tmp_path)][:2] == [first, second]  # kept for the next process


async def test_many_settlements_share_one_fsync(tmp_path, monkeypatch):
    synced: list[int] = []
    really = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (synced.append(descriptor), really(descriptor)))
    async with journal(tmp_path) as journaling:
        following = asyncio.create_task(journaling.run_forever())
        flushed = {journaling.append(settlement()) for _ in range(50)}
        done, _ = await asyncio.wait(flushed, timeout=10)
        assert len(flushed) == len(done) == len(synced) == 1
        assert len(on_disk(tmp_path)) == 50
        following.cancel()
        await asyncio.wait([following])


async def test_segments_of_finished_requests_are_deleted_and_none_is_left_at_the_end(tmp_path):
    async with journal(tmp_path) as journaling:
        for _ in range(10):
            batch = [settlement() for _ in range(10)]
            for one in batch:
                journaling.append(one)
            await journaling.flush()
            for one in batch[:-1]:
                journaling.done(one.request_id)
            last = batch[-1]
            journaling.done(last.request_id)
            await journaling.flush()
            assert sum(path.stat().st_size for path in segments(tmp_path, "jr_1")) < 3 * 4096
    assert list(tmp_path.iterdir()) == []


async def test_a_full_journal_refuses_records_and_counts_the_failure(tmp_path):
    before = metrics.JOURNAL_FAILURES._value.get()
    async with journal(tmp_path, bytes_max=4096) as journaling:
        taken = [one for one in (settlement() for _ in range(50)) if journaling.append(one) is not None]
        await journaling.flush()
        assert 0 < len(taken) < 50
        assert metrics.JOURNAL_FAILURES._value.get() == before + 50 - len(taken)
        assert sum(path.stat().st_size for path in segments(tmp_path, "jr_1")) <= 4096
        for one in taken:
            journaling.done(one.request_id)
        await journaling.flush()
        assert journaling.append(settlement()) is not None  # there is room again


async def test_an_unwritable_folder_does_not_stop_the_gateway(tmp_path, capsys):
    (tmp_path / "file").write_bytes(b"")
    journaling = Journal(tmp_path / "file" / "folder", "jr_1", segment_max_bytes=4096, bytes_max=65_536)
    journaling.open()
    one = settlement()
    assert journaling.append(one) is None
    assert not journaling.holds(one.request_id)
    await journaling.flush()
    await journaling.close()
    assert "journal write failed" in capsys.readouterr().out


def half(descriptor: int, raw: bytes) -> int:
    """``os.write`` of a disk that is full after five bytes."""
    os.pwrite(descriptor, raw[:5], os.fstat(descriptor).st_size)
    raise OSError(28, "no space left on device")


def held_write():
    """An event set when ``os.write`` begins, the event that releases it, and that blocking write."""
    began, goes_on, write = threading.Event(), threading.Event(), os.write

    def slow(descriptor: int, raw: bytes) -> int:
        began.set()
        assert goes_on.wait(5)
        return write(descriptor, raw)

    return began, goes_on, slow


async def test_a_failing_disk_loses_only_records_it_did_not_accept(tmp_path, monkeypatch):
    async with journal(tmp_path) as journaling:
        kept, lost, later = settlement(), settlement(), settlement()
        journaling.append(kept)
        await journaling.flush()
        with monkeypatch.context() as failing:
            failing.setattr(os, "write", half)
            flushed = journaling.append(lost)
            await journaling.flush()
        assert flushed.done()  # the waiting task does not block
        assert not journaling.holds(lost.request_id)
        journaling.append(later)
        await journaling.flush()
        found = [record.settlement for record in on_disk(tmp_path)]
        assert found == [kept, later]


async def test_a_started_write_ends_before_the_journal_closes(tmp_path, monkeypatch):
    began, goes_on, slow = held_write()
    one = settlement()
    async with journal(tmp_path) as journaling:
        monkeypatch.setattr(os, "write", slow)
        journaling.append(one)
        following = asyncio.create_task(journaling.run_forever())
        assert await asyncio.to_thread(began.wait, 5)
        following.cancel()
        await asyncio.wait((following,))
        asyncio.get_running_loop().call_later(0.1, goes_on.set)
    assert [record.settlement for record in on_disk(tmp_path)] == [one]


@pytest.mark.parametrize("written", [False, True], ids=["with the mark", "before the mark"])
async def test_records_written_while_a_segment_fills_up_go_to_the_next(tmp_path, monkeypatch, written):
    began, goes_on, slow = held_write()
    many, late = [settlement() for _ in range(20)], settlement()
    async with journal(tmp_path) as journaling:
        for one in many:
            journaling.append(one)
        with monkeypatch.context() as slowly:
            slowly.setattr(os, "write", slow)
            flushing = asyncio.create_task(journaling.flush())
            assert await asyncio.to_thread(began.wait, 5)
            journaling.append(late)
            goes_on.set()
            await flushing
        assert len(segments(tmp_path, "jr_1")) == 2
        if written:
            await journaling.flush()
        journaling.done(many[0].request_id)
        await journaling.flush()
        for one in many[1:]:
            journaling.done(one.request_id)
        await journaling.flush()
        await journaling.flush()
        assert journaling.holds(late.request_id)
        assert late in [record.settlement for record in on_disk(tmp_path)]
        assert len(segments(tmp_path, "jr_1")) == 1
        journaling.done(late.request_id)


async def test_a_scan_for_dead_journals_does_not_block_a_live_processs_journal(tmp_path, monkeypatch):
    answers = iter([None, None])
    monkeypatch.setattr(journal_module, "lock", lambda path: next(answers, -1) and lock(path))
    async with journal(tmp_path) as journaling:
        journaling.append(one := settlement())
        await journaling.flush()
        assert journaling.holds(one.request_id)


async def test_a_process_without_its_lock_journals_nothing_and_counts_the_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "lock", lambda _: None)
    before = metrics.JOURNAL_FAILURES._value.get()
    async with journal(tmp_path) as journaling:
        assert journaling.append(settlement()) is None
    assert metrics.JOURNAL_FAILURES._value.get() == before + 1


async def test_no_record_is_written_after_a_torn_one_if_no_new_segment_can_be_made(tmp_path, monkeypatch):
    async with journal(tmp_path) as journaling:
        kept, lost, later = settlement(), settlement(), settlement()
        journaling.append(kept)
        await journaling.flush()
        with monkeypatch.context() as failing:

            def none(*_: object) -> int:
                raise OSError(24, "too many open files")

            failing.setattr(os, "write", half)
            failing.setattr(os, "open", none)
            journaling.append(lost)
            await journaling.flush()
        journaling.append(later)
        await journaling.flush()
        assert [record.settlement for record in on_disk(tmp_path)] == [kept, later]


def test_only_one_process_can_hold_a_journal(tmp_path):
    held = lock(lock_file(tmp_path, "jr_1"))
    assert held is not None
    assert lock(lock_file(tmp_path, "jr_1")) is None
    os.close(held)
    again = lock(lock_file(tmp_path, "jr_1"))
    assert again is not None
    os.close(again)


@pytest.mark.parametrize("raw", [b"", b"\0", b"\0" * 8, b"\xff" * 64])
def test_a_file_that_is_not_a_journal_gives_no_settlement(raw):
    assert all(record.settlement is None for record in read_records(raw))


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://:secret@one.example:6379/2", "one.example-6379-2"),
        ("rediss://user:other@one.example:6379/2", "one.example-6379-2"),
        ("redis://127.0.0.1:7000", "127.0.0.1-7000-0"),
        ("unix:///run/redis.sock?db=1", "_run_redis.sock-1"),
    ],
)
def test_each_redis_has_its_own_folder_for_any_password(url, name):
    assert redis_name(url) == name
