"""Alias changes and rollbacks under continuous traffic: the real API and worker, two gateways, two witness replicas."""

import contextlib
import json
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import openai
import pytest

from core import redis_keys
from core.contracts.usage import UsageEvent
from tests.conftest import wait_until
from tests.fixtures.control_plane.two_gateways import Platform, two_gateways
from tests.fixtures.witness.answer import words_of

pytestmark = pytest.mark.quiet

FLIPS = 16
CLIENTS_PER_GATEWAY = 3


@pytest.fixture
def platform(api, settings, engine, redis_settings, tmp_path) -> Iterator[Platform]:
    with two_gateways(api, settings, engine, redis_settings.redis_url, tmp_path, acknowledge_wait_ms=2000) as up:
        yield up


@dataclass
class Answer:
    """One request as its caller saw it, with times of the monotonic clock."""

    sent: float
    first: float
    engine_name: str | None  # None where the text belongs to no revision, or to two


@dataclass
class Traffic:
    """Callers that send requests without a pause until the block ends."""

    platform: Platform
    answers: list[Answer] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._call, args=(gateway.url, f"{number}-{place}", stop))
            for number, gateway in enumerate(self.platform.gateways)
            for place in range(CLIENTS_PER_GATEWAY)
        ]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(self.answers) >= len(threads) or self.failures, what="traffic")
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)

    def _call(self, url: str, prompt: str, stop: threading.Event) -> None:
        spoken = {"".join(words_of(name, json.dumps(prompt), 50)): name for name in self.platform.revisions.values()}
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=self.platform.tenant.key, max_retries=0, timeout=30)
        with client:
            while not stop.is_set():
                sent = time.monotonic()
                try:
                    chunks = client.completions.create(model="bot", prompt=prompt, stream=True)
                    texts = []
                    first = 0.0
                    for chunk in chunks:
                        first = first or time.monotonic()
                        texts.append(chunk.choices[0].text)
                except openai.OpenAIError as error:
                    self.failures.append(error)
                    return
                self.answers.append(Answer(sent, first, spoken.get("".join(texts))))


@dataclass
class Flip:
    began: float
    acknowledged: float
    engine_name: str


def allowed(answer: Answer, flips: list[Flip]) -> set[str]:
    """The revisions that may serve a request: those of the last flip acknowledged before the request was sent, or of a
    flip that started since and before its first token.
    """
    last = max(number for number, flip in enumerate(flips) if flip.acknowledged <= answer.sent)
    return {flip.engine_name for flip in flips[last:] if flip.began <= answer.first}


def test_no_request_is_served_by_the_wrong_revision_after_a_flip_is_acknowledged(platform, redis, capsys):
    ids = list(platform.revisions)
    flips: list[Flip] = []

    def flip(**body: object) -> dict:
        began = time.monotonic()
        moved = platform.flip(**body)
        assert (moved["acknowledged"], moved["gateways"]) == (True, 2), moved
        flips.append(Flip(began, time.monotonic(), platform.revisions[moved["alias"]["revision"]]))
        return moved

    flip(revision=ids[0])
    traffic = Traffic(platform)
    with traffic.running():
        for number in range(FLIPS // 2):
            moved = flip(revision=ids[(number + 1) % 4])
            time.sleep(0.2)  # for traffic without a concurrent change
            flip(**moved["previous"])  # and a rollback
            time.sleep(0.2)
            flip(revision=ids[(number + 1) % 4])
    assert not traffic.failures
    wrong = [answer for answer in traffic.answers if answer.engine_name not in allowed(answer, flips)]
    strict = [answer for answer in traffic.answers if len(allowed(answer, flips)) == 1]
    crossed = [answer for answer in traffic.answers if len(allowed(answer, flips)) > 1]
    took_ms = [round((flip.acknowledged - flip.began) * 1000) for flip in flips]
    with capsys.disabled():
        print(
            f"\n{len(flips)} flips, acknowledged by 2 gateways in ms: p50 {statistics.median(took_ms):.0f}, "
            f"max {max(took_ms)}; {len(traffic.answers)} requests, {len(crossed)} of them met by a flip, "
            f"{len(wrong)} served by a wrong revision"
        )
    assert wrong == []
    assert all(answer.engine_name for answer in traffic.answers), "an answer came from two revisions, or from none"
    assert len(strict) > 20
    assert len(crossed) > 20
    assert max(took_ms) < 1000
    assert _billed(redis, platform) == len(traffic.answers)


def _billed(redis, platform) -> int:
    """The number of billed requests, each billed to the revision that a replica served."""
    events = [
        msgspec.json.decode(entry[b"event"], type=UsageEvent) for _, entry in redis.xrange(redis_keys.USAGE_STREAM)
    ]
    assert {event.revision_id for event in events} <= set(platform.revisions)
    assert all(event.outcome == "done" and event.output_tokens == 50 for event in events)
    return len(events)
