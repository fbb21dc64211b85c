"""Downloads in parallel ranges, from the real S3 server and from one that misbehaves in every possible way."""

import hashlib
import random
import threading
import time

import pytest

from adapters.object_store.download_progress import Download, DownloadStopped
from adapters.object_store.object_reader import ObjectReader
from adapters.object_store.ranged_download import RangePlan, download_ranges
from adapters.object_store.s3 import Bucket, ObjectDamaged, ObjectMissing, StoreUnavailable
from adapters.settings import StoreSettings
from core.errors import Unavailable
from tests.fixtures.faults.s3 import BUCKET, Fault, faulty_s3

PART = 100_000
CONTENT = random.Random(7).randbytes(10 * PART + 17)
PLAN = RangePlan(part_bytes=PART, parallel=4, attempts_max=3, slow_s=0.3)


@pytest.fixture(scope="module")
def server():
    with faulty_s3() as s3:
        yield s3, reader_of(s3, stall_s=0.5)


def reader_of(s3, *, stall_s: float) -> ObjectReader:
    settings = StoreSettings(store_stall_timeout_s=stall_s, store_connect_timeout_s=2)
    return ObjectReader(Bucket(s3.settings, settings))


@pytest.fixture(scope="module")
def patient(server):
    return reader_of(server[0], stall_s=2)


@pytest.fixture
def faulty(server):
    s3, _ = server
    s3.reset({"large": CONTENT, "small": CONTENT[:1000]})
    return s3


@pytest.fixture
def fetch(faulty, server, tmp_path):
    _, reader = server

    def fetch(key="large", content=CONTENT, *, download=None, by=reader, **plan):
        path = tmp_path / "copy"
        arguments = {field: getattr(PLAN, field) for field in PLAN.__struct_fields__} | plan
        download_ranges(
            by, key, path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest(),
            plan=RangePlan(**arguments), download=download or Download(key).begin(30),
        )  # fmt: skip
        assert path.read_bytes() == content

    return fetch


def ranges_asked(faulty) -> list[tuple[int, int]]:
    return sorted((first, end) for key, first, end in faulty.requests if key == "large")


def test_a_large_object_is_read_in_parallel_ranges_and_a_small_one_at_once(faulty, fetch, patient):
    download = Download("large").begin()
    faulty.faults["large"] = [Fault(bytes_per_s=500_000)]
    fetch(download=download, by=patient, slow_s=5)  # the machine may pause, not the server
    assert ranges_asked(faulty) == [(n * PART, min((n + 1) * PART, len(CONTENT))) for n in range(11)]
    assert 2 <= faulty.concurrent_max <= 4
    assert download.done_bytes == len(CONTENT)
    fetch("small", CONTENT[:1000])
    assert faulty.requests[-1] == ("small", 0, 1000)


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ("large", {"stall_after": 600}),
        ("large", {"cut_after": 600}),
        ("small", {"cut_after": 600}),
        ("small", {"stall_after": -1}),
        ("large", {"stall_after": 0}),
    ],
)
def test_an_interrupted_range_resumes_at_its_byte(faulty, fetch, patient, key, fault):
    faulty.faults[key] = [Fault(**fault, times=2)]
    content = faulty.objects[key]
    # A pause of the machine must not look like a stalled or slow server.
    fetch(key, content, by=patient if "stall_after" in fault else reader_of(faulty, stall_s=60), slow_s=60)
    # Both faults may hit one part: at 600, and the rest of it at 1200.
    resumed = sum(first % PART in (600, 1200) for _, first, _ in faulty.requests)
    if fault == {"cut_after": 600}:
        assert resumed == (2 if key == "large" else 1)
        assert faulty.bytes_sent == len(content), "no byte was sent twice"
    elif fault == {"stall_after": 600}:  # a longer pause of the machine looks like one more stall
        assert resumed >= (2 if key == "large" else 1)


def test_a_briefly_overloaded_server_is_retried(faulty, fetch):
    faulty.faults["large"] = [Fault(status=503, times=2)]
    fetch()


@pytest.mark.parametrize(("fault", "kind"), [({"status": 503}, "failing"), ({"cut_after": 10}, "silent")])
def test_attempts_at_a_server_that_keeps_failing_are_bounded(faulty, fetch, fault, kind):
    faulty.faults["large"] = [Fault(**fault, from_position=5 * PART)]
    with pytest.raises(StoreUnavailable) as failed:
        fetch()
    assert failed.value.kind == kind
    assert len(faulty.requests) <= 5 + 3 * 6, "attempts are bounded"


def test_bytes_garbled_in_transit_are_read_again(faulty, fetch):
    faulty.faults["large"] = [Fault(garble=True, times=1, from_position=3 * PART)]
    fetch()


def test_a_garbled_object_is_reported_as_damaged(faulty, fetch):
    faulty.faults["large"] = [Fault(garble=True, from_position=3 * PART)]
    with pytest.raises(ObjectDamaged, match="SHA-256"):
        fetch()


@pytest.mark.parametrize("other", [CONTENT[:-1], CONTENT + b"x"])
def test_an_object_of_another_size_is_reported_as_damaged(faulty, fetch, other):
    faulty.objects["large"] = other
    with pytest.raises((ObjectDamaged, StoreUnavailable)) as failed:
        fetch()
    assert isinstance(failed.value, ObjectDamaged)


def test_an_absent_object_is_reported_as_missing(fetch):
    with pytest.raises(ObjectMissing):
        fetch("none")


def test_a_server_that_ignores_ranges_is_read_in_one_piece(faulty, fetch):
    download = Download("large").begin()
    faulty.faults["large"] = [Fault(ignore_range=True)]
    fetch(download=download)
    assert download.done_bytes == len(CONTENT)


def test_an_interrupted_download_from_a_server_that_ignores_ranges_restarts(faulty, fetch):
    download = Download("small").begin()
    faulty.faults["small"] = [Fault(cut_after=600, times=1), Fault(ignore_range=True)]
    fetch("small", CONTENT[:1000], download=download)
    assert [first for _, first, _ in faulty.requests] == [0, 600]
    assert download.done_bytes == 1000


def test_a_part_much_slower_than_the_others_is_requested_again(faulty, fetch):
    faulty.faults["large"] = [Fault(bytes_per_s=2_000, times=1, from_position=4 * PART)]
    started = time.monotonic()
    fetch()
    assert time.monotonic() - started < 25, "that part alone would have taken 50 s"
    assert len(faulty.requests) == 12


@pytest.mark.parametrize("fault", [Fault(bytes_per_s=2_000), Fault(stall_after=10)])
def test_a_transfer_ends_at_its_deadline(faulty, fetch, fault):
    faulty.faults["large"] = [fault]
    started = time.monotonic()
    with pytest.raises(Unavailable) as failed:
        fetch(download=Download("large").begin(0.5), attempts_max=10)
    assert failed.value.code == "store_timeout"
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("key", ["large", "small"])
def test_a_stopped_transfer_ends_even_if_bytes_arrive_slowly(faulty, fetch, key):
    faulty.faults[key] = [Fault(bytes_per_s=20)]
    download = Download(key).begin(60)
    threading.Timer(0.3, download.stop.set).start()
    started = time.monotonic()
    with pytest.raises(DownloadStopped):
        fetch(key, faulty.objects[key], download=download)
    assert time.monotonic() - started < 10


def test_a_refused_connection_is_unreachable(faulty, tmp_path):
    settings = faulty.settings.model_copy(update={"s3_endpoint": "http://127.0.0.1:9"})
    reader = ObjectReader(Bucket(settings, StoreSettings()))
    with pytest.raises(StoreUnavailable) as failed:
        download_ranges(
            reader, "large", tmp_path / "copy", size_bytes=5, sha256="0" * 64, plan=PLAN,
            download=Download("large").begin(5),
        )  # fmt: skip
    assert failed.value.kind == "unreachable"
    assert BUCKET not in failed.value.message


def test_the_real_server_serves_ranges(store, tmp_path):
    store.bucket.client.put_object(Bucket=store.bucket.name, Key="adapters/large", Body=CONTENT)
    download = Download("large").begin(30)
    download_ranges(
        ObjectReader(store.bucket), "adapters/large", tmp_path / "copy", size_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(), plan=PLAN, download=download,
    )  # fmt: skip
    assert (tmp_path / "copy").read_bytes() == CONTENT
