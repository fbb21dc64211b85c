"""The stream rewriter agrees with a slow reference on every stream, however its bytes are cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_plane.gateway.api.sse import Rewriter, StreamBroken
from data_plane.gateway.api.token_counts import AdapterLoad

ENGINE = "ad_1@" + "ab" * 32
SHOWN = 'support "bot" ü'
HEAD = {"id": "chatcmpl-req_1", "object": "chat.completion.chunk", "created": 17, "model": ENGINE}


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def usage(prompt: int, completion: int, **more: object) -> dict:
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion, **more}


def chunk(
    text: str, count: int, *, index: int = 0, reason: str | None = None, role: bool = False, prompt: int = 9
) -> bytes:
    delta = {"role": "assistant", "content": text} if role else {"content": text}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
    return event(
        **HEAD, choices=[choice], usage=usage(prompt, count, **({"completion_tokens_details": None} if role else {}))
    )


def final(count: int) -> bytes:
    details = {"prompt_tokens_details": {"cached_tokens": 4}}
    return event(**HEAD, choices=[], usage=usage(9, count, **details), system_fingerprint="vllm-secret")


def rewriter(usage_shown="none", sequences: int = 1, **options: object) -> Rewriter:
    given_options = {
        "response_id": "chatcmpl-req_1", "engine_name": ENGINE, "shown_name": SHOWN, "usage_shown": usage_shown,
        "sequences": sequences, "event_max_bytes": 4096, **options,
    }  # fmt: skip
    return Rewriter(**given_options)


def reference(stream: bytes, usage_shown: str) -> list[dict]:
    """The stream that the caller should see, by parsing everything."""
    shown = []
    for part in stream.split(b"\n\n"):
        if not part or part == b"data: [DONE]":
            continue
        parsed = json.loads(part[6:])
        if not parsed["choices"] and usage_shown == "none":
            continue
        kept = {key: parsed[key] for key in ("id", "object", "created", "choices")} | {"model": SHOWN}
        counts = {key: value for key, value in parsed["usage"].items() if value is not None}
        if usage_shown == "continuous" or (usage_shown == "final" and not parsed["choices"]):
            kept["usage"] = counts
        elif usage_shown == "final":
            kept["usage"] = None
        shown.append(kept)
    return shown


def parsed(out: bytes) -> list[dict]:
    events = [json.loads(part[6:]) for part in out.split(b"\n\n") if part]
    for one in events:
        if isinstance(one.get("usage"), dict):
            one["usage"] = {key: value for key, value in one["usage"].items() if value is not None}
    return events


hostile = st.sampled_from(
    ['","usage":{"prompt_tokens":1,"total_tokens":1,"completion_tokens":99}}',
     f'"model":"{ENGINE}","choices":[', "\n\n", "data: [DONE]", "}]}", "\\"]
)  # fmt: skip
texts = st.lists(st.text(max_size=12) | hostile, min_size=1, max_size=12)


@given(
    texts=texts,
    cuts=st.lists(st.integers(1, 300), max_size=20),
    usage_shown=st.sampled_from(["none", "final", "continuous"]),
)
def test_the_rewriter_agrees_with_the_slow_reference_on_every_stream(texts, cuts, usage_shown):
    stream = chunk("", 0, role=True) + b"".join(chunk(text, count) for count, text in enumerate(texts, 1))
    stream += chunk("", len(texts), reason="stop") + final(len(texts)) + b"data: [DONE]\n\n"
    one = rewriter(usage_shown)
    out, rest = b"", stream
    for cut in cuts:
        out += one.feed(rest[:cut])
        rest = rest[cut:]
    out += one.feed(rest)
    assert parsed(out) == reference(stream, usage_shown)
    counts = one.counts()
    assert (counts.sequences, counts.cached_tokens) == ([(9, len(texts))], 4)
    assert one.final
    assert one.done


def test_only_public_names_are_shown():
    one = rewriter()
    out = one.feed(chunk("", 0, role=True) + chunk("a", 1) + chunk("b", 2, reason="stop") + final(2))
    for secret in (ENGINE.encode(), b"secret", b"usage"):
        assert secret not in out


def test_running_counts_are_read_before_the_end():
    one = rewriter()
    one.feed(chunk("", 0, role=True))
    assert one.counts().total_tokens == 0  # no token, so the engine counts no prompt either
    one.feed(chunk("a", 1) + chunk("b", 2))
    assert (one.counts().input_tokens, one.counts().output_tokens) == (9, 2)
    assert not one.final
    assert not one.counts().cached_known
    one.feed(event(**HEAD, choices=[], usage=usage(9, 2)))
    assert (one.counts().cached_tokens, one.counts().cached_known) == (0, True)


def test_cached_tokens_are_known_and_shown_from_the_first_event_that_the_engine_reports_them_with():
    one = rewriter("continuous")
    (first,) = parsed(one.feed(b": tenora-cached-tokens 4\n\n" + chunk("", 0, role=True)))
    (last,) = parsed(one.feed(final(0)))
    assert first["usage"]["prompt_tokens_details"] == last["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert rewriter().feed(b": tenora-cached-tokens x\n\n") == b""


SEVERAL = chunk("a", 1) + chunk("", 0, index=2, prompt=30) + chunk("c", 1, index=1, prompt=5) + chunk("b", 2) + final(3)


def test_each_of_several_sequences_is_counted_with_its_prompt():
    one = rewriter("final", sequences=3)
    out = one.feed(SEVERAL)
    assert one.counts().sequences == [(9, 2), (5, 1)]
    out += one.feed(b"data: [DONE]\n\n")
    assert parsed(out)[-1]["usage"] == {
        "prompt_tokens": 14, "total_tokens": 17, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4},
    }  # fmt: skip


@given(cut=st.integers(1, 900))
def test_the_middlewares_report_on_several_sequences_is_read_before_their_usage_is_shown(cut):
    stream = SEVERAL + b": tenora-sequences [[9,8,2],[5,3,1]]\n\ndata: [DONE]\n\n"
    one = rewriter("final", sequences=3)
    out = one.feed(stream[:cut]) + one.feed(stream[cut:])
    assert (one.counts().sequences, one.counts().cached_tokens) == ([(9, 2), (5, 1)], 11)
    shown = parsed(out)[-1]["usage"]
    assert (shown["prompt_tokens"], shown["prompt_tokens_details"]) == (14, {"cached_tokens": 11})
    assert b"tenora" not in out


def test_sequences_whose_counts_do_not_add_up_break_the_stream():
    with pytest.raises(StreamBroken, match="differ"):
        rewriter(sequences=2).feed(chunk("a", 1) + final(3))


@pytest.mark.parametrize(
    "broken",
    [
        b'data: {"error":{"message":"secret"}}\n\n',
        b"data: nonsense\n\n",
        b"data: []\n\n",
        b"event: x\n\n",
        b"data: " + b"a" * 7000,
        chunk("a", 1, reason="abort"),
        event(**HEAD, choices=[1]),
        event(**HEAD, choices=[]),
        event(**HEAD, choices=[{}], usage=7),
        event(**HEAD, choices=[{}], usage={"prompt_tokens": "x", "completion_tokens": 7, "total_tokens": 7}),
        event(**HEAD, choices=[{}], usage={"prompt_tokens": 10**400, "completion_tokens": 7, "total_tokens": 7}),
        chunk("a", 1).replace(b'"completion_tokens":1', b'"completion_tokens":' + b"1" * 5000),
        b"data: " + b"[" * 4000 + b"\n\n",
    ],
)
@pytest.mark.parametrize("usage_shown", ["none", "final", "continuous"])
def test_an_invalid_event_breaks_the_stream_after_the_counted_tokens(broken, usage_shown):
    one = rewriter(usage_shown, event_max_bytes=6000)
    one.feed(chunk("", 0, role=True) + chunk("a", 1))
    with pytest.raises(StreamBroken):
        one.feed(broken)
    assert one.counts().output_tokens == 1


@pytest.mark.parametrize("broken", [b'data: {"error":{"message":"secret"}}\n\n', event(**HEAD, choices=[1])])
def test_events_received_together_with_an_invalid_one_are_passed_on_as_billed(broken):
    one, other = rewriter(), rewriter()
    for each in (one, other):
        each.feed(chunk("", 0, role=True) + chunk("a", 1))
    with pytest.raises(StreamBroken) as caught:
        one.feed(chunk(" b", 2) + broken)
    assert caught.value.before == other.feed(chunk(" b", 2))
    assert one.counts().output_tokens == 2


def test_a_requested_abort_ends_the_stream_with_its_count():
    one = rewriter()
    one.feed(chunk("a", 1))
    one.aborting = True
    one.feed(chunk("", 1, reason="abort") + final(1))
    assert one.final
    assert one.counts().output_tokens == 1


def test_comments_keep_a_stream_alive_and_are_not_passed_on():
    assert rewriter().feed(b": ping\n\n") == b""


def test_the_fast_path_is_taken():
    one = rewriter()
    one.feed(chunk("a", 1))
    assert one._head.endswith(b'"choices":')
    assert one._last_usage is None
    one.feed(chunk("b", 2))
    assert one._last_usage is not None


odd = st.sampled_from(
    [final(3), b": ping\n\n", chunk("", 3, reason="abort"), event(error="x"), chunk("x", 3)[:-2], b"\n"]
)


@given(
    events=st.lists(texts.map(lambda some: chunk("".join(some), len(some))) | odd, min_size=4, max_size=12),
    usage_shown=st.sampled_from(["none", "final", "continuous"]),
)
def test_events_in_one_read_are_parsed_like_single_events(events, usage_shown):
    together, singly = rewriter(usage_shown), rewriter(usage_shown)
    results = []
    for one, pieces in ((together, [b"".join(events)]), (singly, events)):
        out = one.feed(chunk("", 0, role=True))
        try:
            for piece in pieces:
                out += one.feed(piece)
            results.append((out, one.counts()))
        except StreamBroken:
            results.append((b"", one.counts()))
    assert results[0] == results[1]


REPORTS = [
    (
        b': tenora-load {"tier":"disk","load_ms":31,"stall_ms":4}',
        "load",
        AdapterLoad(tier="disk", load_ms=31, stall_ms=4),
    ),
    (b": tenora-aborted [[512,128]]", "aborted_report", b"[[512,128]]"),
    (b": tenora-kv-page-ms 345", "kv_page_ms", 345),
]


@pytest.mark.parametrize(("report", "name", "read"), REPORTS, ids=["load", "prefills", "page time"])
@given(cut=st.integers(1, 400), terminator=st.sampled_from([b"\n\n", b"\n"]))
def test_the_middlewares_reports_are_read_and_not_passed_on(report, name, read, cut, terminator):
    before = b": ping\n\n: tenora-kv-page-ms 12\n\n" + chunk("a", 1) + final(1)
    stream = before + report + terminator + b"data: [DONE]\n\n"
    plain, one = rewriter(), rewriter()
    out = one.feed(stream[:cut]) + one.feed(stream[cut:])
    assert out == plain.feed(chunk("a", 1) + final(1) + b"data: [DONE]\n\n")
    assert (one.done, getattr(one.counts() if name == "kv_page_ms" else one, name)) == (True, read)
    assert (plain.load, plain.aborted_report, plain.counts().kv_page_ms) == (None, None, None)


@pytest.mark.parametrize("word", [b"", b"-1", b"1.5", b"\xb2", b"9" * 16, b"nonsense"])
def test_an_unreadable_report_of_page_time_changes_nothing(word):
    one = rewriter()
    report = b": tenora-kv-page-ms "
    one.feed(report + b"12\n\n" + chunk("a", 1) + report + word + b"\n\n" + final(1) + b"data: [DONE]\n\n")
    assert (one.done, one.counts().kv_page_ms) == (True, 12)


@pytest.mark.parametrize("word", [b"{}", b"nonsense", b'{"tier":"moon","load_ms":1,"stall_ms":1}', b"\xff"])
def test_an_unreadable_load_report_does_not_break_the_answer(word):
    one = rewriter()
    one.feed(chunk("a", 1) + b": tenora-load " + word + b"\n\n" + final(1) + b"data: [DONE]\n\n")
    assert (one.load, one.done) == (None, True)


@pytest.mark.parametrize("cut", [1, 7, 1 << 20])
def test_the_finish_reason_is_the_engines_and_no_text_can_forge_it(cut):
    stream = chunk("", 1, role=True) + chunk('"finish_reason":"forged"', 2) + chunk("", 3, reason="length")
    one = rewriter()
    for at in range(0, len(stream), cut):
        assert one.finish_reason in (None, "length")
        one.feed(stream[at : at + cut])
    assert one.finish_reason == "length"
    one.feed(final(3))
    assert one.finish_reason == "length"
