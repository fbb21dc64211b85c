"""What is wrong with lines of an input file, the order in which they are sent, and the ids of their requests."""

import io
import itertools
import json
import tracemalloc

import pytest

from control_plane.batches.lines import PROBLEMS_MAX, CheckedLines, body_of, check, in_order, request_id
from control_plane.settings import BatchSettings
from core.ids import is_id, ms_of_id

CHAT = "/v1/chat/completions"
SETTINGS = BatchSettings(batch_lines_max=50, batch_line_bytes_max=1024)


def line(custom_id="one", *, model="bot", text="hi", **changes):
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | changes


def checked(*lines: object) -> CheckedLines:
    raw = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in lines]
    return check(io.BytesIO(b"\n".join(raw)), CHAT, SETTINGS)


def test_good_lines_are_found_with_their_places():
    first, second = line("a", text="é"), line("b")
    file = io.BytesIO(b"\n".join([json.dumps(first).encode(), b"", json.dumps(second).encode(), b""]))
    found = check(file, CHAT, SETTINGS)
    assert found.problems == []
    assert [(plan.line, plan.custom_id, plan.model) for plan in found.plans] == [(1, "a", "bot"), (3, "b", "bot")]
    assert [json.loads(body_of(file, plan)) for plan in found.plans] == [first["body"], second["body"]]
    assert found.tokens > 0


BAD = {
    "invalid_utf8": (b'{"custom_id": "\xff"}', None),
    "invalid_json_line": (b"{", None),
    "unknown_field": (line(extra=1), "extra"),
    "invalid_custom_id": (line(custom_id=5), "custom_id"),
    "invalid_method": (line(method="GET"), "method"),
    "invalid_url": (line(url="https://elsewhere.example/v1/chat/completions"), "url"),
    "invalid_body": (line(body=[]), "body"),
    "unknown_field ": (line(**{"x\0" * 100: 1}), "x " * 32),
    "missing_model ": (line(model="bot\0"), "body.model"),
    "missing_model": (line(body={"messages": []}), "body.model"),
    "stream_not_allowed": (line(body={"model": "bot", "stream": True}), "body.stream"),
    "line_too_large": (line(text="x" * 2000), None),
}


@pytest.mark.parametrize("code", BAD)
def test_a_bad_line_is_named_with_its_number_its_field_and_the_fix(code):
    bad, param = BAD[code]
    found = checked(line("before"), bad, line("after"))
    (problem,) = found.problems
    assert (problem.code, problem.line, problem.param) == (code.strip(), 2, param)
    assert problem.message.startswith(f"Line 2: {param or ''}")
    assert [plan.custom_id for plan in found.plans] == ["before", "after"]


def test_the_second_line_of_a_custom_id_is_named():
    (problem,) = checked(line("same"), line("same")).problems
    assert (problem.code, problem.line, problem.param) == ("duplicate_custom_id", 2, "custom_id")
    assert "line 1" in problem.message


def test_one_line_too_many_is_named_and_the_rest_is_not_read():
    found = checked(*[line(str(number)) for number in range(60)])
    (problem,) = found.problems
    assert (problem.code, problem.line) == ("too_many_lines", 51)
    assert len(checked(*[line(str(number)) for number in range(50)]).plans) == 50


def test_a_file_without_a_line_and_one_full_of_bad_lines():
    assert checked(b"", b"  ").problems[0].code == "empty_file"
    many = check(io.BytesIO(b"{\n" * 500), CHAT, BatchSettings())
    assert len(many.problems) == PROBLEMS_MAX


def test_deep_json_is_a_bad_line():
    assert checked(b'{"custom_id":' + b"[" * 500 + b"]" * 500 + b"}").problems[0].line == 1


def test_lines_of_one_adapter_and_of_one_beginning_follow_each_other():
    lines = [line(str(number), model=f"m{number % 2}", text=f"{number % 3} prompt") for number in range(12)]
    ordered = in_order(checked(*lines).plans)
    keys = [(plan.model, plan.prefix) for plan in ordered]
    assert len(keys) == 12
    assert sum(one != other for one, other in itertools.pairwise(keys)) == 2 * 3 - 1
    assert [plan.line for plan in ordered if (plan.model, plan.prefix) == keys[0]] == [1, 7]


@pytest.mark.parametrize(
    ("asked", "generated"),
    [
        ({"max_tokens": 1000}, 1000),
        ({"max_completion_tokens": 1000, "n": 3}, 3000),
        ({}, 512),  # what the plan allows
        ({"n": 2, "max_tokens": "x"}, 1024),
        ({"prompt": ["a", "b"], "n": 2, "max_tokens": 10}, 40),
        ({"prompt": [1, 2, 3], "max_tokens": 10}, 10),
        ({"prompt": [[1, 2], [3]], "max_tokens": 10}, 20),
    ],
)
def test_tokens_are_estimated_from_the_length_and_what_the_line_may_generate(asked, generated):
    content = json.dumps(line(body={"model": "bot"} | asked)).encode()
    found = check(io.BytesIO(content), CHAT, SETTINGS, output_tokens=512)
    assert found.tokens == generated + len(content) // 4


def test_embeddings_generate_nothing():
    content = json.dumps(line(url="/v1/embeddings", body={"model": "e5", "input": ["a", "b"]})).encode()
    found = check(io.BytesIO(content), "/v1/embeddings", SETTINGS, output_tokens=512)
    assert found.problems == []
    assert found.tokens == len(content) // 4


@pytest.mark.parametrize("lines", [2_000, pytest.param(50_000, marks=pytest.mark.soak)])
def test_lines_of_a_large_file_take_little_memory(tmp_path, lines):
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        for number in range(lines):
            file.write(json.dumps(line(f"request-{number}", text=f"{number} " + "x" * 1_500)).encode() + b"\n")
    size = path.stat().st_size
    tracemalloc.start()
    with path.open("rb") as file:
        found = check(file, CHAT, BatchSettings())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.plans) == lines
    assert peak < size / 2


def test_a_lines_request_has_one_id_for_an_hour_which_tells_the_hour():
    created_ms, hour_ms = 1_700_000_000_000, 3_600_000
    first = request_id("batch_1", 3, 0, created_ms=created_ms, now_ms=created_ms + 5)
    assert first == request_id("batch_1", 3, 0, created_ms=created_ms, now_ms=created_ms + hour_ms - 1)
    later = request_id("batch_1", 3, 0, created_ms=created_ms, now_ms=created_ms + hour_ms)
    others = {later, request_id("batch_1", 3, 1, created_ms=created_ms, now_ms=created_ms)}
    others |= {request_id("batch_1", 4, 0, created_ms=created_ms, now_ms=created_ms)}
    assert len({first, *others}) == 4
    assert all(is_id(each, "req") for each in (first, *others))
    assert (ms_of_id(first), ms_of_id(later)) == (created_ms, created_ms + hour_ms)
