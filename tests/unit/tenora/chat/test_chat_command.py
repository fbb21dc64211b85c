"""What `tenora chat` prints of a model's answer, and what it sends."""

import json

import httpx
import pytest
from click.testing import CliRunner

from tenora.cli import main
from tenora.client import refusal

PIECES = [
    {"id": "chatcmpl-1", "model": "bot", "choices": [{"delta": {"content": "\x1b[2J"}, "finish_reason": None}]},
    {"id": "chatcmpl-1", "model": "bot", "choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]},
    {"id": "chatcmpl-1", "model": "bot", "choices": [], "usage": {"completion_tokens": 2}},
]
ACCESS = {"TENORA_API_KEY": "tnr_live_x", "TENORA_CONTROL_URL": "http://c", "TENORA_GATEWAY_URL": ""}


@pytest.fixture
def chat(monkeypatch):
    """Run the command on a model that answers so; returns what it printed, and what it asked."""
    asked = []

    def answer(_client, model, messages, **options):
        asked.append((model, [each["content"] for each in messages], options))
        return iter(PIECES)

    monkeypatch.setattr("tenora.client.Tenora.chat", answer)
    return lambda *arguments, **more: (CliRunner().invoke(main, ["chat", *arguments], env=ACCESS, **more), asked)


def test_an_answer_is_printed_as_it_arrives_and_steers_no_terminal(chat):
    done, asked = chat("bot", "Which boots?", "--system", "You sell boots.", "--max-tokens", "8")
    assert done.stdout == "\\u001b[2JHi\n"
    assert asked == [("bot", ["You sell boots.", "Which boots?"], {"max_tokens": 8})]


def test_a_question_from_a_pipe_is_answered_as_one_document(chat):
    done, asked = chat("bot", "--json", input="Which\nboots?")
    assert json.loads(done.stdout) == {
        "id": "chatcmpl-1", "model": "bot", "content": "\x1b[2JHi", "finish_reason": "stop",
        "usage": {"completion_tokens": 2},
    }  # fmt: skip
    assert asked == [("bot", ["Which\nboots?"], {})]


def test_without_an_address_of_gateways_it_says_how_to_give_one():
    done = CliRunner().invoke(main, ["chat", "bot", "Hello"], env=ACCESS)
    assert (done.exit_code, "set TENORA_GATEWAY_URL" in done.stderr) == (1, True)


def test_a_gateways_refusal_has_its_code_and_request_id():
    error = {"message": "The model `x` does not exist.", "code": "model_not_found"}
    answer = httpx.Response(404, json={"error": error}, headers={"x-request-id": "req_1"})
    assert refusal(answer).message == "The model `x` does not exist. (model_not_found, req_1)"
    assert refusal(answer).facts == error
