"""When the first answer of a cascade is kept, what its caller sees of it, and when a group stops asking that member."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Forbidden, Unavailable
from data_plane.gateway.api.request_phases import RequestPhases
from data_plane.gateway.request.cascade import HELD_TOKENS_MAX, EscalationShares, HeldClient, JudgedAnswer
from tests.unit.data_plane.gateway.routing.test_classifier import call_of

DONE = b"data: [DONE]\n\n"


def verdict(text: str, *probabilities: float, is_json: bool = False, is_whole: bool = True) -> str:
    judged = JudgedAnswer(threshold_percent=50, is_json=is_json)
    content = [{"token": "x", "logprob": math.log(each)} for each in probabilities]
    judged.add([{"message": {"content": text}, "logprobs": {"content": content}}])
    return judged.judge(is_whole=is_whole)


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [((0.9, 0.8), "kept"), ((0.9, 0.2), "unsure"), ((0.51,), "kept"), ((0.49,), "unsure"), ((), "kept")],
)
def test_the_geometric_mean_of_the_tokens_probabilities_decides(probabilities, expected):
    assert verdict("Paris.", *probabilities) == expected


@pytest.mark.parametrize(
    "text",
    ["I'm sorry, but no.", "I’m sorry", "I cannot help", "  As an AI, I", "Sorry, I do not know", "I am unable to"],
)
def test_a_refusal_is_replaced_however_sure_it_is(text):
    assert verdict(text, 0.99) == "refusal"


@pytest.mark.parametrize("text", ["Sorry is a word.", "I can do that.", "She said: I cannot come.", "An aid"])
def test_other_beginnings_are_no_refusals(text):
    assert verdict(text, 0.99) == "kept"


@pytest.mark.parametrize(
    ("text", "is_whole", "expected"),
    [('{"a": 1}', True, "kept"), ('{"a": ', True, "schema"), ('{"a": ', False, "kept"), ("", True, "schema")],
)
def test_only_a_whole_answer_fails_for_its_json(text, is_whole, expected):
    assert verdict(text, 0.9, is_json=True, is_whole=is_whole) == expected


def test_events_add_up_and_tokens_count_without_log_probabilities():
    judged = JudgedAnswer(threshold_percent=36, is_json=False)
    for choice in (
        {"delta": {"role": "assistant", "content": ""}, "logprobs": None},
        {"delta": {"content": "I can"}, "logprobs": {"content": [{"logprob": -1.0}, {"logprob": None}]}},
        {"delta": {"content": "not"}, "logprobs": None},
        {"delta": {"tool_calls": [{}]}},
    ):
        judged.add([choice])
        assert judged.judge(is_whole=False) == ("refusal" if judged.tokens > 1 else "kept")
    assert judged.tokens == 3


def test_above_its_bound_a_group_tries_one_request_in_twenty_until_its_share_has_fallen():
    shares = EscalationShares()
    tried = 0
    while shares.may_try("group", percent_max=60):
        shares.judged("group", escalated=True)
        tried += 1
    assert 30 < tried < 60
    assert shares.may_try("other", percent_max=60)
    allowed = [shares.may_try("group", percent_max=60) for _ in range(100)]
    assert sum(allowed) == 5
    for _ in range(5):
        shares.judged("group", escalated=False)
    assert shares.may_try("group", percent_max=60)


def test_the_groups_that_were_used_last_are_remembered():
    shares = EscalationShares(groups_max=2)
    for group in ("a", "b", "a", "c"):
        shares.judged(group, escalated=True)
    assert [shares.may_try(group, percent_max=1) for group in "abc"] == [False, True, False]


@given(st.lists(st.booleans(), max_size=200))
def test_a_group_with_a_bound_of_all_always_tries(escalated):
    shares = EscalationShares()
    for each in escalated:
        assert shares.may_try("group", percent_max=100)
        shares.judged("group", escalated=each)


class Caller:
    """Records what is sent."""

    def __init__(self) -> None:
        self.started, self.sent, self.phases, self.request_headers = False, b"", RequestPhases(), []
        self.on_gone = self.line = None

    def watch(self, on_gone) -> None:
        self.on_gone = on_gone

    def begin(self, _headers, body: bytes) -> bool:
        self.started = True
        return self.push(body)

    def push(self, body: bytes) -> bool:
        self.sent += body
        return True

    async def finish(self, body: bytes) -> None:
        self.sent += body

    async def deliver(self, answer: bytes, _headers) -> None:
        self.sent += answer


def event(word: str, probability: float) -> bytes:
    choice = {"index": 0, "delta": {"content": word}, "logprobs": {"content": [{"logprob": math.log(probability)}]}}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def held(**fields) -> tuple[HeldClient, Caller, list[str]]:
    caller, hung_up = Caller(), []
    client = HeldClient(caller, call_of("hi", fields=fields), threshold_percent=50)
    client.watch(lambda: hung_up.append("gone"))
    return client, caller, hung_up


def stream(client: HeldClient, count: int, probability: float) -> None:
    client.begin([], event("w0 ", probability))
    for number in range(1, count):
        client.push(event(f"w{number} ", probability))


def test_a_sure_stream_is_held_for_its_first_tokens_and_then_passes():
    client, caller, gone = held()
    stream(client, HELD_TOKENS_MAX - 1, 0.9)
    assert caller.sent == b""
    client.push(event("end", 0.1))
    assert caller.sent.count(b"data: ") == HELD_TOKENS_MAX
    client.push(event("more", 0.01))
    assert caller.sent.count(b"data: ") == HELD_TOKENS_MAX + 1
    assert b"logprob" in caller.sent
    assert b"-0" not in caller.sent, "no log-probability is shown"
    assert (client.rejects(DONE, [], None), gone) == (False, [])


def test_an_unsure_stream_hangs_up_and_shows_nothing():
    client, caller, gone = held()
    stream(client, HELD_TOKENS_MAX + 3, 0.1)
    assert (caller.sent, gone, client.answer.verdict) == (b"", ["gone"], "unsure")
    assert client.rejects(b"", [], None)
    assert not client.whole


@pytest.mark.parametrize(("probability", "rejected"), [(0.9, False), (0.1, True)])
async def test_a_short_stream_is_judged_at_its_end_and_can_still_be_shown(probability, rejected):
    client, caller, gone = held()
    stream(client, 3, probability)
    assert (client.rejects(DONE, [], None), gone, bool(client.whole)) == (rejected, [], rejected)
    await (client.show() if rejected else client.finish(DONE))
    assert caller.sent.endswith(DONE)
    assert caller.sent.count(b"data: ") == 4


@pytest.mark.parametrize("shown", [False, True])
async def test_a_whole_answer_shows_log_probabilities_only_to_a_caller_that_asked(shown):
    client, caller, _ = held(**({"logprobs": True} if shown else {}))
    choice = {"message": {"content": "Paris"}, "logprobs": {"content": [{"logprob": -0.1}]}}
    answer = json.dumps({"choices": [choice]}).encode()
    assert not client.rejects(answer, [], None)
    await client.deliver(answer, [])
    assert (json.loads(caller.sent)["choices"][0]["logprobs"] is not None) is shown


def test_a_failure_is_replaced_and_a_revoked_key_or_a_caller_that_hung_up_is_not():
    client, *_ = held()
    assert client.rejects(b"", [], Unavailable("no replica"))
    assert client.answer.verdict == "failed"
    assert not held()[0].rejects(b"", [], Forbidden("suspended"))
    client, caller, gone = held()
    caller.on_gone()
    assert (client.rejects(b"", [], None), client.is_gone, gone) == (False, True, ["gone"])


async def test_an_error_before_anything_was_sent_is_raised():
    client, caller, _ = held()
    stream(client, 2, 0.9)
    with pytest.raises(Forbidden):
        await client.break_off(Forbidden("suspended"))
    assert caller.sent == b""
