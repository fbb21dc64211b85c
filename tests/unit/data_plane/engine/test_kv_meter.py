"""The meter follows a schedule: what a reader of its table finds is what the requests have held."""

from types import SimpleNamespace

import pytest

from core.kv_area import KvArea
from data_plane.engine import kv_meter, kv_table
from data_plane.engine.kv_meter import KvMeter, attach
from data_plane.engine.kv_table import KV_TABLE_FILE, KvTableReader, KvTableWriter

CHAT = "chatcmpl-req_1"


class Engine:
    """A scheduler as vLLM 0.32 has it: the meter sees its output, and its requests after the step. Time is given."""

    def __init__(self, folder, monkeypatch, **table):
        self.now = 1000
        for module in (kv_meter, kv_table):
            monkeypatch.setattr(module, "now_ms", lambda: self.now)
        self.meter = KvMeter(KvTableWriter(folder, **table), block_tokens=32)
        self.reader = KvTableReader(folder)
        self.requests = {}

    def step(self, *, after_ms=10, new=(), **tokens):
        """Schedule these sequences up to so many tokens. vLLM lists blocks only where a sequence took some."""
        self.now += after_ms
        blocks = [-(-count // 32) - -(-self.computed(name) // 32) for name, count in tokens.items()]
        for name, count in tokens.items():
            self.requests[name] = SimpleNamespace(num_computed_tokens=count)
        cached = [(name, taken) for (name, taken) in zip(tokens, blocks, strict=True) if name not in new]
        self.meter.record_schedule(
            SimpleNamespace(
                scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
                scheduled_cached_reqs=SimpleNamespace(
                    req_ids=[name for name, _ in cached],
                    new_block_ids=[([7] * taken,) if taken else None for _, taken in cached],
                ),
            ),
            self.requests,
        )

    def computed(self, name):
        return self.requests[name].num_computed_tokens if name in self.requests else 0

    def free(self, name, *, after_ms=0):
        self.now += after_ms
        self.requests.pop(name, None)
        self.meter.record_free(name)


@pytest.fixture
def engine(tmp_path, monkeypatch):
    return Engine(tmp_path, monkeypatch)


def internal(request_id=CHAT, child=""):
    return f"{child}{request_id}-0a1b2c3d"


def test_a_request_is_measured_from_its_first_step_to_its_end(engine):
    name = internal()
    engine.step(new=[name], **{name: 31})
    engine.step(after_ms=10, **{name: 32})
    engine.step(after_ms=10, **{name: 33})
    assert engine.reader.page_ms(CHAT) == 2 * 20
    engine.now += 5
    assert engine.reader.page_ms(CHAT) == 2 * 20 + 4 * 5, "a reader sees it grow between two steps"
    engine.free(name, after_ms=5)
    engine.now += 1000
    assert engine.reader.page_ms(CHAT) == engine.reader.total_page_ms() == 80, "it has ended"


def test_a_request_that_was_never_scheduled_is_not_in_the_table(engine):
    engine.free(internal())
    assert (engine.reader.page_ms(CHAT), engine.reader.total_page_ms()) == (None, 0)


@pytest.mark.parametrize(
    ("request_id", "first", "second"),
    [
        (CHAT, internal(child="0_"), internal(child="1_")),
        ("cmpl-req_1-0", internal("cmpl-req_1-0"), internal("cmpl-req_1-12")),
        ("cmpl-req_1-0", internal("cmpl-req_1-0", "1_"), internal("cmpl-req_1-1", "0_")),
    ],
    ids=["n", "prompts", "prompts times n"],
)
def test_the_sequences_of_a_request_add_up_also_when_one_starts_after_another_has_ended(
    engine, request_id, first, second
):
    engine.step(new=[first], **{first: 10})
    engine.free(first, after_ms=10)
    engine.step(after_ms=100, new=[second], **{second: 10})
    engine.free(second, after_ms=10)
    assert engine.reader.page_ms(request_id) == 2 * 10 + 2 * 10


def test_a_preempted_request_costs_nothing_until_it_runs_again(engine):
    name = internal()
    engine.step(new=[name], **{name: 64})
    engine.free(name, after_ms=10)
    assert (engine.reader.page_ms(CHAT), engine.meter._total.pages) == (40, 0)
    engine.step(after_ms=500, **{name: 64})  # a resumed request is listed among the cached ones, with all its blocks
    engine.free(name, after_ms=10)
    assert engine.reader.page_ms(CHAT) == engine.reader.total_page_ms() == 80


def test_a_cached_prefix_counts_for_each_request_that_holds_it(engine):
    one, other = internal("chatcmpl-a"), internal("chatcmpl-b")
    engine.step(new=[one], **{one: 65})
    engine.step(after_ms=0, new=[other], **{other: 65})
    engine.now += 10
    assert engine.reader.page_ms("chatcmpl-a") == engine.reader.page_ms("chatcmpl-b") == 6 * 10
    assert engine.reader.total_page_ms() == 120


def test_the_total_keeps_what_aborted_and_overwritten_requests_used(tmp_path, monkeypatch):
    engine = Engine(tmp_path, monkeypatch, buckets=1, ways=2)
    names = [internal(f"chatcmpl-{number}") for number in range(5)]
    for name in names:
        engine.step(new=[name], **{name: 10})
        engine.free(name, after_ms=10)
    found = [engine.reader.page_ms(f"chatcmpl-{number}") for number in range(5)]
    assert found == [None, None, None, 20, 20], "the newest keep their places"
    assert engine.reader.total_page_ms() == 100
    assert len(engine.meter._requests) == 2, "what lost its place is forgotten"


def test_a_request_without_a_place_is_still_in_the_total(tmp_path, monkeypatch):
    engine = Engine(tmp_path, monkeypatch, buckets=1, ways=1)
    held, other = internal("chatcmpl-held"), internal("chatcmpl-other")
    engine.step(new=[held, other], **{held: 10, other: 10})
    engine.free(other, after_ms=10)
    assert (engine.reader.page_ms("chatcmpl-held"), engine.reader.page_ms("chatcmpl-other")) == (20, None)
    assert engine.reader.total_page_ms() == 40
    assert set(engine.meter._requests) == {"chatcmpl-held"}


def test_a_record_that_is_being_written_is_not_believed(tmp_path, engine):
    name = internal()
    engine.step(new=[name], **{name: 10})
    path = tmp_path / KV_TABLE_FILE
    content = bytearray(path.read_bytes())
    at = content.find(kv_table._key(CHAT))
    content[at + 16] ^= 1
    path.write_bytes(content)
    assert KvTableReader(tmp_path).page_ms(CHAT) is None


def test_nothing_is_known_without_a_table(tmp_path):
    reader = KvTableReader(tmp_path)
    assert (reader.page_ms(CHAT), reader.total_page_ms()) == (None, None)
    KvTableWriter(tmp_path)
    assert reader.total_page_ms() == 0, "the engine has started"


@pytest.mark.parametrize("content", [b"", b"short", bytes(4096)])
def test_a_file_of_another_kind_is_no_table(tmp_path, content):
    (tmp_path / KV_TABLE_FILE).write_bytes(content)
    reader = KvTableReader(tmp_path)
    assert (reader.page_ms(CHAT), reader.total_page_ms()) == (None, None)


def test_a_place_is_that_of_the_request_which_ended_first(tmp_path):
    writer = KvTableWriter(tmp_path, buckets=1, ways=2)
    areas = [KvArea(16) for _ in range(3)]
    places = [writer.claim(f"r{number}", area) for number, area in enumerate(areas[:2])]
    assert [before for _, before in places] == [None, None]
    for number, end in ((0, 50), (1, 40)):
        areas[number].hold("0", 1, 10)
        areas[number].release("0", end)
    place, before = writer.claim("r2", areas[2])
    assert (place.at, before) == (places[1][0].at, "r1")


def test_a_meter_that_stops_leaves_no_record_that_grows(engine):
    name = internal()
    engine.step(new=[name], **{name: 10})
    engine.now += 10
    engine.meter.stop()
    engine.now += 1000
    assert (engine.reader.page_ms(CHAT), engine.reader.total_page_ms()) == (None, 20)


class Scheduler:
    """The two methods of vLLM's scheduler that the meter extends."""

    def __init__(self, block_size=32):
        self.cache_config = SimpleNamespace(block_size=block_size)
        self.max_num_running_reqs = 4
        self.requests = {internal(): SimpleNamespace(num_computed_tokens=40, request_id=internal())}
        self.freed = []

    def schedule(self, throttle_prefills=False):
        return SimpleNamespace(
            scheduled_new_reqs=[SimpleNamespace(req_id=internal())],
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], new_block_ids=[]),
            throttled=throttle_prefills,
        )

    def _free_request_blocks(self, request):
        self.freed.append(request.request_id)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A scheduler class with the meter, and the run folder of its engine."""
    monkeypatch.setenv("TENORA_ENGINE_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("TENORA_REPLICA_ID", "rep_one")
    folder = tmp_path / "rep_one"
    folder.mkdir()

    class Measured(Scheduler):
        pass

    attach(Measured)
    return Measured, folder


def test_a_scheduler_goes_on_as_before_and_is_measured(measured):
    scheduler, reader = measured[0](), KvTableReader(measured[1])
    assert scheduler.schedule(throttle_prefills=True).throttled
    assert scheduler.tenora_kv_meter._total.pages == 4
    scheduler._free_request_blocks(scheduler.requests[internal()])
    assert scheduler.freed == [internal()]
    assert reader.page_ms(CHAT) == reader.total_page_ms()


@pytest.mark.parametrize("broken", ["folder", "schedule"])
def test_an_error_of_the_measure_never_reaches_the_engine(measured, broken):
    scheduler = measured[0]()
    if broken == "folder":
        measured[1].rmdir()
    else:
        scheduler.cache_config.block_size = 0
    for _ in range(2):
        assert scheduler.schedule().scheduled_new_reqs
        scheduler._free_request_blocks(scheduler.requests[internal()])
    assert scheduler.tenora_kv_meter is None
    assert len(scheduler.freed) == 2
