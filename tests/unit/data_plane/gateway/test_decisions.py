"""The gateway's pure decisions: the route of a request, its caller, the meaning of a model name and the message of a
limit.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core import api_keys
from core.contracts.grants import KeyGrant, KeyLimits, TenantGrant
from core.contracts.routes import AdapterRoute, RevisionRoute
from core.contracts.usage import AbortedPrefill
from core.errors import Forbidden, NotFound, Unauthenticated
from core.kv_area import even_growth_page_ms
from core.kv_pages import page_ms
from data_plane.gateway.api.model_catalog import describe, describe_one, resolve
from data_plane.gateway.api.token_counts import AdapterLoad, TokenCounts
from data_plane.gateway.errors import error_body, error_headers
from data_plane.gateway.quota.rate_limit_response import ReservationResult, duration, quota_exceeded
from data_plane.gateway.settlement.usage_event import RequestRun, usage_event
from data_plane.gateway.state.authenticate import Caller, authenticate
from data_plane.gateway.state.snapshot import Tables
from tests.fixtures.gateway.published import AMPLE
from tests.fixtures.gateway.requests import inference_request, replica_status
from tests.fixtures.gateway.tiny_tokenizer import tiny_route

PEPPER = b"pepper"


def caller_of(built: Tables, tenant_id: str) -> Caller:
    return Caller(KeyGrant(key_id="key_1", tenant_id=tenant_id, scopes=()), built.tenants[tenant_id])


def tables(*, aliases=None, **tenants: str) -> Tables:
    built = Tables()
    for tenant_id, state in (tenants or {"tn_1": "active", "tn_2": "active"}).items():
        built.tenants[tenant_id] = TenantGrant(tenant_id=tenant_id, status=state, limits=AMPLE)
    route = tiny_route()
    built.base_models[route.id] = built.hub_names[route.hub_name] = route
    adapter = AdapterRoute(
        adapter_id="ad_1", tenant_id="tn_1", name="bot", base_model=route.id, created_at_ms=1, newest="rev_2",
        revisions={
            name: RevisionRoute(id=name, digest=letter * 64, rank=8, rank_class=16)
            for name, letter in (("rev_1", "c"), ("rev_2", "d"))
        },
        aliases=aliases or {},
    )  # fmt: skip
    built.adapters["tn_1"] = {"bot": adapter}
    return built


def with_key(built: Tables, tenant_id: str = "tn_1", scopes: tuple[str, ...] = ("inference",)) -> bytes:
    key = api_keys.mint_key("live")
    built.keys[api_keys.hash_key(key, PEPPER)] = KeyGrant(key_id="key_1", tenant_id=tenant_id, scopes=scopes)
    return key.encode()


def test_a_good_key_identifies_its_tenant():
    built = tables()
    headers = [(b"host", b"x"), (b"authorization", b"bearer " + with_key(built))]
    assert authenticate(headers, built, PEPPER).tenant.tenant_id == "tn_1"


def test_anything_but_exactly_one_good_key_is_refused():
    built = tables()
    good = with_key(built)
    wrong_checksum = good[:-1] + (b"A" if good[-1:] != b"A" else b"B")
    credentials = [
        b"", b"Bearer", b"Bearer ", b"Basic " + good, good, b"Bearer " + wrong_checksum, b"Bearer ' OR 1=1 --",
        b"Bearer " + b"a" * 10_240, b"Bearer " + good + b"\0", b"Bearer \xff\xfe",
        b"Bearer " + api_keys.mint_key("live").encode(),
        b"Bearer " + api_keys.mint_key("admin").encode(),
    ]  # fmt: skip
    for credential in credentials:
        with pytest.raises(Unauthenticated):
            authenticate([(b"authorization", credential)], built, PEPPER)
    with pytest.raises(Unauthenticated):
        authenticate([], built, PEPPER)
    with pytest.raises(Unauthenticated):
        authenticate([(b"authorization", b"Bearer " + good)], built, b"another pepper")
    rotated = authenticate([(b"authorization", b"Bearer " + good)], built, b"another pepper", PEPPER)
    assert rotated.tenant.tenant_id == "tn_1", "its pepper is the previous one"


def test_a_suspended_tenant_and_a_key_without_the_scope_get_named_errors():
    built = tables(tn_1="suspended", tn_2="active")
    for key, code in (
        (with_key(built), "tenant_suspended"),
        (with_key(built, "tn_2", ("usage:read",)), "insufficient_scope"),
    ):
        with pytest.raises(Forbidden) as refusal:
            authenticate([(b"authorization", b"Bearer " + key)], built, PEPPER)
        assert refusal.value.code == code


def named(built: Tables, tenant_id: str, model: str, draw: str = "req_1") -> str:
    return resolve(built, tenant_id, model, draw=draw).engine_name


def test_names_are_looked_up_inside_the_tenant_only():
    built = tables()
    assert named(built, "tn_1", "bot") == "ad_1@" + "d" * 64
    assert named(built, "tn_2", "tiny-chat") == "tiny-chat"
    assert named(built, "tn_2", "tenora-tests/tiny-chat") == "tiny-chat"
    assert [entry["id"] for entry in describe(built, caller_of(built, "tn_1"))] == ["bot", "tiny-chat"]
    assert [entry["id"] for entry in describe(built, caller_of(built, "tn_2"))] == ["tiny-chat"]


def test_a_bare_name_means_prod_once_it_is_set_and_the_newest_until_then():
    assert named(tables(), "tn_1", "bot") == "ad_1@" + "d" * 64
    built = tables(aliases={"prod": {"rev_1": 1}, "canary": {"rev_2": 1}})
    assert named(built, "tn_1", "bot") == named(built, "tn_1", "bot:prod") == "ad_1@" + "c" * 64
    assert named(built, "tn_1", "bot:canary") == named(built, "tn_1", "bot@rev_2") == "ad_1@" + "d" * 64
    assert named(built, "tn_1", "bot@rev_1") == "ad_1@" + "c" * 64
    assert [entry["id"] for entry in describe(built, caller_of(built, "tn_1"))] == [
        "bot",
        "bot:canary",
        "bot:prod",
        "tiny-chat",
    ]
    assert describe_one(built, caller_of(built, "tn_1"), "bot:canary")["id"] == "bot:canary"


def test_only_callable_models_are_listed():
    built = tables(aliases={"canary": {"rev_1": 1}, "gone": {"rev_9": 1}})
    listed = [str(entry["id"]) for entry in describe(built, caller_of(built, "tn_1"))]
    assert listed == ["bot", "bot:canary", "tiny-chat"]
    for model in listed:
        assert named(built, "tn_1", model)
    built = tables(aliases={"prod": {"rev_9": 1}})
    assert [entry["id"] for entry in describe(built, caller_of(built, "tn_1"))] == ["tiny-chat"]
    built = tables()
    built.base_models.clear()
    assert describe(built, caller_of(built, "tn_1")) == []


@pytest.mark.parametrize(
    "model", ["bot:", "bot:none", "bot@", "bot@rev_3", "bot@rev_1:prod", "bot:prod@rev_1", "@", ":"]
)
def test_an_absent_alias_or_revision_is_not_found(model):
    built = tables(aliases={"prod": {"rev_1": 1}, "gone": {"rev_9": 1}})
    for name in (model, "bot:gone"):
        with pytest.raises(NotFound) as refusal:
            named(built, "tn_1", name)
        assert (refusal.value.code, refusal.value.param) == ("model_not_found", "model")
        assert ("/api/v1/adapters/bot/aliases/" in refusal.value.message) is (name in ("bot@", "bot@rev_3"))


def test_a_weighted_alias_skips_an_absent_revision():
    built = tables(aliases={"prod": {"rev_1": 1, "rev_9": 1000}})
    assert {named(built, "tn_1", "bot", f"req_{n}") for n in range(50)} == {"ad_1@" + "c" * 64}


def test_one_digest_in_two_adapters_has_two_engine_names():
    """An engine's prefix cache distinguishes adapters by name, so nothing of one is reused for the other."""
    built = tables()
    twin = replace(built.adapters["tn_1"]["bot"], adapter_id="ad_2", tenant_id="tn_2")
    built.adapters["tn_2"] = {"bot": twin}
    assert [named(built, tenant, "bot") for tenant in ("tn_1", "tn_2")] == [f"ad_{n}@{'d' * 64}" for n in (1, 2)]


def test_another_tenants_adapter_looks_absent():
    built = tables()
    answers = []
    for name in ("bot", "nob"):
        with pytest.raises(NotFound) as refusal:
            named(built, "tn_2", name)
        answers.append(error_body(refusal.value).replace(name.encode(), b"NAME"))
    assert answers[0] == answers[1]
    for name in (
        "../../x",
        "/etc",
        "hf-org/repo",
        "x" * 10_240,
        "ad_1@" + "d" * 64,
        "tn_1/bot",
        "bot:prod",
        "bot@rev_1",
    ):
        with pytest.raises(NotFound) as refusal:
            named(built, "tn_2", name)
        assert len(refusal.value.message) < 300


@pytest.mark.parametrize(
    ("own", "windows"),
    [
        (None, (100, 90)), (KeyLimits(requests_per_minute=1), (100, 90)), (KeyLimits(context_tokens=50), (50, 90)),
        (KeyLimits(output_tokens=10), (100, 10)), (KeyLimits(context_tokens=500, output_tokens=500), (100, 90)),
    ],
)  # fmt: skip
def test_a_keys_limits_only_lower_the_tenants_limits(own, windows):
    limits = replace(AMPLE, context_tokens=100, output_tokens=90)
    caller = Caller(
        KeyGrant(key_id="key_1", tenant_id="tn_1", scopes=(), limits=own),
        TenantGrant(tenant_id="tn_1", status="active", limits=limits),
    )
    assert (caller.limits.context_tokens, caller.limits.output_tokens) == windows
    assert replace(caller.limits, context_tokens=100, output_tokens=90) == limits


@pytest.mark.parametrize(
    ("microseconds", "text"), [(0, "0ms"), (1, "1ms"), (12_000, "12ms"), (1_500_000, "1.5s"), (60_000_000, "1m0s"),
                               (361_250_000, "6m1.25s")]
)  # fmt: skip
def test_durations_have_openais_format(microseconds, text):
    assert duration(microseconds) == text


@pytest.mark.parametrize(
    ("blocked_by", "wait_us", "code", "kind", "retry"),
    [
        ("tokens_per_month", -1, "insufficient_quota", b"insufficient_quota", None),
        ("spend", -1, "insufficient_quota", b"insufficient_quota", None),
        ("output_tokens_per_minute", 10, "rate_limit_exceeded", b"rate_limit_error", b"1"),
        ("requests_per_minute", 1_500_000, "rate_limit_exceeded", b"rate_limit_error", b"2"),
        ("tokens_per_minute", 10, "rate_limit_exceeded", b"rate_limit_error", b"1"),
        ("tokens_per_minute", -1, "rate_limit_exceeded", b"rate_limit_error", None),
        ("concurrent_requests", 0, "concurrent_requests_exceeded", b"rate_limit_error", b"1"),
        ("kv_pages", 0, "kv_pages_exceeded", b"rate_limit_error", b"1"),
        ("kv_pages", -1, "kv_pages_exceeded", b"rate_limit_error", None),
    ],
)
def test_each_refusal_names_its_limit_and_whether_to_retry(blocked_by, wait_us, code, kind, retry):
    result = ReservationResult(
        blocked_by=blocked_by, level="tenant", wait_us=wait_us, limit=5, remaining=1, fits=3, max_tokens=0, pages=2,
        requests_limit=600, requests_remaining=2, requests_reset_us=3000, tokens_limit=9000, tokens_remaining=4,
        tokens_reset_us=5000, replica_pages_held=0,
    )  # fmt: skip
    error = quota_exceeded(result, tokens=7)
    headers = dict(error_headers(error))
    assert (error.status, error.code) == (429, code)
    assert b'"type":"' + kind in error_body(error)
    assert headers.get(b"retry-after") == retry
    assert headers[b"x-should-retry"] == (b"false" if retry is None else b"true")
    assert headers[b"x-ratelimit-remaining-requests"] == b"2"
    assert headers[b"x-ratelimit-reset-tokens"] == b"5ms"
    counted = blocked_by not in ("requests_per_minute", "concurrent_requests")
    assert (b'"max_tokens_that_fit":3' in error_body(error)) == counted


@pytest.mark.parametrize(
    ("blocked_by", "wait_us", "fits", "tail"),
    [
        (
            "tokens_per_month",
            -1,
            3,
            "tokens per month; 1 are left and this request may use 7. Lower max_tokens to 3 or ask for a larger limit.",
        ),
        ("requests_per_minute", 1_500_000, 0, "requests per minute. Please try again in 2s or ask for a larger limit."),
        (
            "output_tokens_per_minute",
            -1,
            0,
            (
                "output tokens per minute; this request may use 7 tokens. "
                "No max_tokens fits: shorten the prompt or ask for a larger limit."
            ),
        ),
        ("concurrent_requests", 0, 0, "concurrent requests. Please try again in 1s or ask for a larger limit."),
        ("concurrent_requests", -1, 0, "concurrent requests. Ask for a larger limit."),
        (
            "kv_pages",
            0,
            3,
            "KV pages in use; this request may use 2 and 1 are free. Please try again in 1s or ask for a larger limit.",
        ),
    ],
)
def test_each_message_names_the_limit_its_value_and_the_fix(blocked_by, wait_us, fits, tail):
    result = ReservationResult(
        blocked_by=blocked_by, level="tenant", wait_us=wait_us, limit=5, remaining=1, fits=fits, max_tokens=0, pages=2,
        requests_limit=600, requests_remaining=2, requests_reset_us=3000, tokens_limit=9000, tokens_remaining=4,
        tokens_reset_us=5000, replica_pages_held=0,
    )  # fmt: skip
    assert quota_exceeded(result, tokens=7).message == f"The plan allows 5 {tail}"


RUN = RequestRun(
    replica=replica_status(block_tokens=32), outcome="done", started_at_ms=1, settled_at_ms=2, on_replica_ms=40,
    generating_ms=30, first_token_ms=7, duration_ms=50, load=None,
)  # fmt: skip


@given(
    prompt=st.integers(1, 5000),
    outputs=st.lists(st.integers(1, 500), max_size=4),
    aborted=st.lists(st.integers(1, 5000), max_size=2),
    measured=st.none() | st.integers(0, 100_000),
)
def test_an_event_bills_the_page_time_that_the_engine_measured(prompt, outputs, aborted, measured):
    prefills = tuple(AbortedPrefill(tokens, 0) for tokens in aborted)
    counts = TokenCounts([(prompt, output) for output in outputs], aborted=prefills, kv_page_ms=measured)
    event, early = (
        usage_event(inference_request(), replace(RUN, estimated=estimated), counts) for estimated in (False, True)
    )
    most = sum(page_ms(length, 40, 32) for length in [*(prompt + output for output in outputs), *aborted])
    assert event.kv_page_ms <= most, "more than the reservation holds"
    assert early.kv_page_ms <= event.kv_page_ms, "an estimate never costs more than the request"
    if measured is None:
        assert event.kv_page_ms == sum(even_growth_page_ms(prompt, output, 30, 32) for output in outputs)
        assert event.kv_measured == (not outputs and not aborted), "what used nothing needs no measure"
        assert (early.kv_page_ms, early.kv_measured) == (0, False)
    else:
        assert (event.kv_page_ms, event.kv_measured) == (min(measured, most), True)
        assert (early.kv_page_ms, early.kv_measured) == (event.kv_page_ms, True)


@given(
    sequences=st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 500)), max_size=4), cached=st.integers(0, 5000)
)
def test_an_event_bills_the_engines_counts(sequences, cached):
    request = inference_request()
    run = replace(RUN, load=AdapterLoad(tier="disk", load_ms=5, stall_ms=1))
    event = usage_event(request, run, TokenCounts(sequences, cached))
    assert event.input_tokens == sum(prompt for prompt, _ in sequences)
    assert event.output_tokens == sum(output for _, output in sequences)
    assert event.cached_tokens == min(cached, event.input_tokens)
    counts = TokenCounts(sequences, cached_known=False)
    early = usage_event(request, replace(run, estimated=True), counts)
    assert early.cached_tokens == early.input_tokens  # so that the request costs at most its whole usage
    aborted = (AbortedPrefill(64, 16), AbortedPrefill(33, 0))
    gone = usage_event(request, run, TokenCounts(sequences, cached, aborted=aborted))
    assert (gone.input_tokens, gone.aborted_prefill_tokens) == (event.input_tokens + 97, 97)
    assert gone.cached_tokens == min(cached + 16, gone.input_tokens)
    assert (event.first_token_ms, event.duration_ms) == (7, 50)
    assert (event.adapter_tier, event.adapter_load_ms, event.stall_ms) == ("disk", 5, 1)
