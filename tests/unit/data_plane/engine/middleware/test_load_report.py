"""Each request reports once what its adapter cost, at the end of its stream; nothing of a failed adapter is sent."""

import json
from types import SimpleNamespace

import msgspec
import pytest

from core.kv_area import KvArea
from data_plane.engine.kv_table import KvTableReader, KvTableWriter
from data_plane.engine.middleware.aborts import RunningRequest
from data_plane.engine.middleware.adapter_loader import LoadOutcome
from data_plane.engine.middleware.load_report import AdapterReportingSend, KvReports, ReportingSend, StallReports
from data_plane.engine.residency import RESIDENCY_FILE, ResidencyReader
from data_plane.engine.worker.residency_table import ResidencyTable

ENGINE_ID = "chatcmpl-req_1"


class Reporting:
    """A residency table on disk, its stall reports, and the messages that a client received."""

    def __init__(self, folder):
        self.folder = folder
        self.table: ResidencyTable[str] = ResidencyTable(slots=1)
        self.stalls = StallReports(ResidencyReader(folder))
        self.sent = []
        self.failures = 0
        self.running = RunningRequest()
        self.publish()

    def publish(self):
        fresh = self.folder / "new"
        fresh.write_bytes(msgspec.json.encode(self.table.snapshot()))
        fresh.replace(self.folder / RESIDENCY_FILE)

    def send(self, name="a"):
        async def send(message):
            self.sent.append(message)

        def on_failure():
            self.failures += 1

        kv = KvReports(KvTableReader(self.folder), ENGINE_ID, 3600)
        return AdapterReportingSend(send, RunningRequest(), kv, name, LoadOutcome("disk", 12), self.stalls, on_failure)

    def hold(self, page_ms):
        """The engine has measured so many page-milliseconds of the request."""
        area = KvArea(16)
        area.hold("0", 16, 1)
        area.release("0", 1 + page_ms)
        table = KvTableWriter(self.folder)
        place, _ = table.claim(ENGINE_ID, area)
        table.write(place)

    def kv_send(self, interval_s, *, sequences=()):
        """The ``send`` of a request for the base model. ``sequences`` are prompt, cached and output tokens."""
        self.running.states = [
            SimpleNamespace(
                prompt_len=prompt, num_cached_tokens=cached, is_prefilling=output is None,
                detokenizer=SimpleNamespace(num_output_tokens=lambda output=output: output),
            )
            for prompt, cached, output in sequences
        ]  # fmt: skip

        async def send(message):
            self.sent.append(message)

        return ReportingSend(send, self.running, KvReports(KvTableReader(self.folder), ENGINE_ID, interval_s))

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent)


@pytest.fixture
def reporting(tmp_path):
    return Reporting(tmp_path)


def start(kind=b"text/event-stream; charset=utf-8"):
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}


def part(content, *, more=True):
    return {"type": "http.response.body", "body": content, "more_body": more}


async def test_the_report_comes_before_the_last_event(reporting):
    reporting.table.record_load("a", "slot", 7.4, in_step=True)
    reporting.table.record_load("a", "memory", 100, in_step=False)
    reporting.table.record_load("b", "slot", 50, in_step=True)
    reporting.publish()
    send = reporting.send()
    for message in (start(), part(b"data: 1\n\n"), part(b"data: [DONE]\n\n"), part(b"", more=False)):
        await send(message)
    assert reporting.body == b'data: 1\n\n: tenora-load {"tier":"disk","load_ms":12,"stall_ms":7}\n\ndata: [DONE]\n\n'


async def test_a_stream_that_breaks_off_without_its_last_event_is_reported_as_well(reporting):
    send = reporting.send()
    for message in (start(), part(b"data: 1\n\n"), part(b"", more=False)):
        await send(message)
    assert reporting.body.count(b": tenora-load ") == 1


async def test_another_kind_of_answer_has_it_in_a_header(reporting):
    send = reporting.send()
    await send(start(b"application/json"))
    await send(part(b"{}", more=False))
    assert json.loads(dict(reporting.sent[0]["headers"])[b"x-tenora-load"])["tier"] == "disk"
    assert reporting.body == b"{}"


async def test_a_stall_is_reported_once_and_by_the_adapter_that_caused_it(reporting):
    reporting.table.record_load("a", "slot", 5, in_step=True)
    reporting.publish()
    assert (
        reporting.stalls.take_stall_ms("b"),
        reporting.stalls.take_stall_ms("a"),
        reporting.stalls.take_stall_ms("a"),
    ) == (0, 5, 0)
    reporting.table.record_load("a", "slot", 6, in_step=True)
    reporting.publish()
    assert reporting.stalls.take_stall_ms("a") == 6


async def test_stalls_that_left_the_table_are_dropped(reporting):
    for number in range(400):
        reporting.table.record_load(f"a{number}", "slot", 1, in_step=True)
        reporting.publish()
        reporting.stalls.take_stall_ms(f"a{number}")
    assert len(reporting.stalls._reported) <= 300


async def test_a_failure_before_the_first_token_sends_nothing_at_all(reporting):
    send = reporting.send()
    await send(start())
    reporting.table.record_failure("a")
    reporting.publish()
    await send(part(b"data: 1\n\n"))
    await send(part(b"", more=False))
    assert (reporting.sent, send.failed, send.started, reporting.failures) == ([], True, False, 1)


async def test_a_failure_in_the_middle_sends_nothing_more(reporting):
    send = reporting.send()
    await send(start())
    await send(part(b"data: 1\n\n"))
    reporting.table.record_failure("a")
    reporting.publish()
    await send(part(b"data: 2\n\n"))
    await send.end_early()
    assert reporting.body == b"data: 1\n\n"
    assert reporting.sent[-1] == part(b"", more=False)


async def test_a_failure_does_not_affect_other_adapters(reporting):
    reporting.table.record_failure("b")
    reporting.publish()
    send = reporting.send()
    await send(start())
    await send(part(b"data: 1\n\n"))
    assert reporting.body == b"data: 1\n\n"


async def test_a_stream_reports_its_page_time_with_its_tokens_and_at_its_end(reporting):
    reporting.hold(700)
    send = reporting.kv_send(interval_s=0)
    for message in (start(), part(b"data: 1\n\n"), part(b"data: [DONE]\n\n"), part(b"", more=False)):
        await send(message)
    report = b": tenora-kv-page-ms 700\n\n"
    assert reporting.body == report + b"data: 1\n\n" + report + b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("sequences", "report"),
    [
        ([SimpleNamespace(is_prefilling=False, num_cached_tokens=32)], b": tenora-cached-tokens 32\n\n"),
        ([SimpleNamespace(is_prefilling=True, num_cached_tokens=0)], b""),  # aborted before its first token
        ([SimpleNamespace(is_prefilling=False, num_cached_tokens=32)] * 2, b""),
    ],
)
async def test_a_stream_of_one_sequence_begins_with_its_cached_tokens(reporting, sequences, report):
    send = reporting.kv_send(interval_s=3600)
    reporting.running.states += sequences
    for message in (start(), part(b"data: 1\n\n"), part(b"data: 2\n\n")):
        await send(message)
    assert reporting.body == report + b"data: 1\n\ndata: 2\n\n"


async def test_a_stream_is_not_interrupted_before_a_report_is_due(reporting):
    reporting.hold(700)
    send = reporting.kv_send(interval_s=3600)
    for message in (start(), part(b"data: 1\n\n"), part(b"data: 2\n\n")):
        await send(message)
    assert reporting.body == b"data: 1\n\ndata: 2\n\n"


@pytest.mark.parametrize(
    ("sequences", "report"),
    [([(9, 4, 2)], None), ([(9, 4, 2), (30, 0, None), (5, 3, 1)], b"[[9,4,2],[5,3,1]]")],
    ids=["one", "several, one without a token"],
)
async def test_an_answer_reports_the_tokens_of_each_of_several_sequences(reporting, sequences, report):
    send = reporting.kv_send(0, sequences=sequences)
    await send(start(b"application/json"))
    await send(part(b"{}", more=False))
    assert dict(reporting.sent[0]["headers"]).get(b"x-tenora-sequences") == report
    send = reporting.kv_send(0, sequences=sequences)
    for message in (start(), part(b"data: 1\n\n"), part(b"data: [DONE]\n\n")):
        await send(message)
    comment = b"" if report is None else b": tenora-sequences " + report + b"\n\n"
    assert reporting.body.endswith(b"data: 1\n\n" + comment + b"data: [DONE]\n\n")
