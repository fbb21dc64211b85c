"""Each request is told once what its adapter cost, at the end of its stream, and nothing of a failed one gets out."""

import json

import msgspec
import pytest

from data_plane.engine.middleware.adapter_loader import LoadOutcome
from data_plane.engine.middleware.load_report import ReportingSend, StallReports
from data_plane.engine.residency import RESIDENCY_FILE, ResidencyReader
from data_plane.engine.worker.residency_table import ResidencyTable


class Told:
    """A table on the disk, a report on it, and what a client got."""

    def __init__(self, folder):
        self.folder = folder
        self.tiers: ResidencyTable[str] = ResidencyTable(slots=1)
        self.stalls = StallReports(ResidencyReader(folder))
        self.sent = []
        self.failures = 0
        self.publish()

    def publish(self):
        fresh = self.folder / "new"
        fresh.write_bytes(msgspec.json.encode(self.tiers.snapshot()))
        fresh.replace(self.folder / RESIDENCY_FILE)

    def send(self, name="a"):
        async def send(message):
            self.sent.append(message)

        def on_failure():
            self.failures += 1

        return ReportingSend(send, name, LoadOutcome("disk", 12), self.stalls, on_failure)

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent)


@pytest.fixture
def told(tmp_path):
    return Told(tmp_path)


def start(kind=b"text/event-stream; charset=utf-8"):
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}


def part(content, *, more=True):
    return {"type": "http.response.body", "body": content, "more_body": more}


async def test_the_report_comes_before_the_last_event(told):
    told.tiers.record_load("a", "slot", 7.4, in_step=True)
    told.tiers.record_load("a", "memory", 100, in_step=False)
    told.tiers.record_load("b", "slot", 50, in_step=True)
    told.publish()
    send = told.send()
    for message in (start(), part(b"data: 1\n\n"), part(b"data: [DONE]\n\n"), part(b"", more=False)):
        await send(message)
    assert told.body == b'data: 1\n\n: tenora {"tier":"disk","load_ms":12,"stall_ms":7}\n\ndata: [DONE]\n\n'


async def test_a_stream_that_breaks_off_without_its_last_event_is_reported_as_well(told):
    send = told.send()
    for message in (start(), part(b"data: 1\n\n"), part(b"", more=False)):
        await send(message)
    assert told.body.count(b": tenora ") == 1


async def test_another_kind_of_answer_has_it_in_a_header(told):
    send = told.send()
    await send(start(b"application/json"))
    await send(part(b"{}", more=False))
    assert json.loads(dict(told.sent[0]["headers"])[b"x-tenora-load"])["tier"] == "disk"
    assert told.body == b"{}"


async def test_a_stall_is_told_once_and_by_whose_adapter_caused_it(told):
    told.tiers.record_load("a", "slot", 5, in_step=True)
    told.publish()
    assert (told.stalls.take_stall_ms("b"), told.stalls.take_stall_ms("a"), told.stalls.take_stall_ms("a")) == (0, 5, 0)
    told.tiers.record_load("a", "slot", 6, in_step=True)
    told.publish()
    assert told.stalls.take_stall_ms("a") == 6


async def test_what_has_left_the_table_is_not_remembered_for_ever(told):
    for number in range(400):
        told.tiers.record_load(f"a{number}", "slot", 1, in_step=True)
        told.publish()
        told.stalls.take_stall_ms(f"a{number}")
    assert len(told.stalls._reported) <= 300


async def test_a_failure_before_the_first_token_sends_nothing_at_all(told):
    send = told.send()
    await send(start())
    told.tiers.record_failure("a")
    told.publish()
    await send(part(b"data: 1\n\n"))
    await send(part(b"", more=False))
    assert (told.sent, send.failed, send.started, told.failures) == ([], True, False, 1)


async def test_a_failure_in_the_middle_lets_nothing_more_out(told):
    send = told.send()
    await send(start())
    await send(part(b"data: 1\n\n"))
    told.tiers.record_failure("a")
    told.publish()
    await send(part(b"data: 2\n\n"))
    await send.end_early()
    assert told.body == b"data: 1\n\n"
    assert told.sent[-1] == part(b"", more=False)


async def test_another_adapters_failure_concerns_nobody_else(told):
    told.tiers.record_failure("b")
    told.publish()
    send = told.send()
    await send(start())
    await send(part(b"data: 1\n\n"))
    assert told.body == b"data: 1\n\n"
