"""The requests that are made of one request to a group: which member each goes to, with which id, and at what price."""

import contextlib
import json
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from core import api_keys
from core.contracts.grants import KeyGrant, Prices, TenantGrant
from core.errors import AppError, InvalidRequest, Unavailable
from core.ids import is_id, ms_of_id, new_id
from data_plane.gateway.admission.moves import Placement
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.api.token_counts import TokenCounts
from data_plane.gateway.errors import RequestSettled
from data_plane.gateway.quota.rate_limit_response import ReservationResult
from data_plane.gateway.request.lifecycle import Lifecycle
from data_plane.gateway.request.preparation import Preparation
from data_plane.gateway.routing.router import Router, Stickiness
from data_plane.gateway.settlement.settler import Hold
from data_plane.gateway.state.redis_clock import RedisClock
from data_plane.gateway.upstream.attempt import AttemptResult
from data_plane.gateway.upstream.engine_client import ReplicaFailed
from tests.fixtures.gateway.published import AMPLE, group_route
from tests.fixtures.gateway.requests import replica_status, settings_with
from tests.fixtures.gateway.tiny_tokenizer import tiny_route
from tests.unit.data_plane.gateway.routing.test_router import tables

SETTINGS, REPLICA = settings_with(), replica_status()
KEY = api_keys.mint_key("live")
PRICES = Prices(input_nanos=1, cached_input_nanos=1, output_nanos=100, kv_page_second_nanos=0)
SURE, UNSURE = -0.01, -5.0
GRANTED = ReservationResult(
    blocked_by="", level="", wait_us=0, limit=-1, remaining=-1, fits=0, max_tokens=16, pages=2, requests_limit=-1,
    requests_remaining=-1, requests_reset_us=0, tokens_limit=-1, tokens_remaining=-1, tokens_reset_us=0,
    replica_pages_held=2,
)  # fmt: skip
NO_POOL = InvalidRequest("no pool", code="no_pool_serves")
TOO_LARGE = InvalidRequest("too large", code="request_exceeds_replica")
BUSY = Unavailable("full", code="overloaded")
AWAY = Unavailable("away", code="no_replica")
REFUSED = InvalidRequest("refused", code="request_refused")


async def nothing(*_arguments: object) -> None:
    """Stands for a step without a result."""


class Asked:
    """A gateway without Redis and replicas: ``refusals`` by member at admission, ``answers`` by member on its replica,
    each an error or a log-probability. It records who was counted and admitted.
    """

    def __init__(self, rule: str, *members: str, refusals=None, answers=None, **changes) -> None:
        self.group = replace(group_route("tn_1", "auto", rule, *members), **changes)
        self.tables = tables(self.group, bases=members)
        self.tables.tenants["tn_1"] = TenantGrant(tenant_id="tn_1", status="active", limits=AMPLE, prices=PRICES)
        hashed = api_keys.hash_key(KEY, SETTINGS.peppers[0])
        self.tables.keys[hashed] = KeyGrant(key_id="key_1", tenant_id="tn_1", scopes=("inference",))
        self.refusals, self.answers = refusals or {}, answers or {}
        self.counted: list[str] = []
        self.admitted: list[tuple[str, str]] = []
        self.reasons: list[tuple[str, str | None]] = []
        self.settled: list[str] = []
        self.on_answer: Callable[[], object] = lambda: None
        self.sent: list[dict] = []

    async def count(self, _tenant_id, base, *_rest) -> list[int]:
        self.counted.append(base.id)
        return [10]

    async def admit(self, request, *_rest) -> Placement:
        member = request.target.shown_name
        if (refusal := self.refusals.get(member)) is not None:
            raise refusal
        self.admitted.append((member, request.id))
        self.reasons.append((request.route.reason, request.route.first_request_id))
        return Placement(REPLICA, Hold(request.id, "tn_1", "rep_1", 2), GRANTED, SimpleNamespace(occupancy=None))

    def attempt(self, _client, request, _dispatch) -> SimpleNamespace:
        return SimpleNamespace(
            request=request, first_byte_at=None, itl_p95_ms=None, finish_reason="stop", counts=TokenCounts
        )

    async def run(self, attempt) -> AttemptResult:
        answer = self.answers.get(attempt.request.target.shown_name, SURE)
        self.on_answer()
        if isinstance(answer, AppError):
            raise answer
        choice = {"message": {"content": "Paris"}, "logprobs": {"content": [{"logprob": answer}]}}
        body = {"model": attempt.request.target.shown_name, "choices": [choice]}
        return AttemptResult("done", TokenCounts([(10, 1)]), ending=json.dumps(body).encode())

    async def settle(self, settlement) -> None:
        self.settled.append(settlement.request_id)

    def lifecycle(self) -> Lifecycle:
        @contextlib.asynccontextmanager
        async def once(*_arguments: object):
            yield True

        router = Router(SimpleNamespace(probability=lambda _text: 1.0), Stickiness(sessions_max=9, idle_s=9))
        preparation = Preparation(
            SETTINGS, SimpleNamespace(tables=self.tables), SimpleNamespace(require_current=lambda: None), None,
            SimpleNamespace(count=self.count), SimpleNamespace(check=nothing), router,
        )  # fmt: skip
        relay = SimpleNamespace(
            attempt=self.attempt, run=self.run, retries=SimpleNamespace(deposit=lambda: None, withdraw=lambda: False)
        )
        done = lambda *_arguments: None  # noqa: E731 - three of them
        settler = SimpleNamespace(attach=done, settle=self.settle, release=done)
        admission = SimpleNamespace(admit=self.admit, ended=done, moves=None)
        return Lifecycle(SETTINGS, preparation, admission, settler, relay, SimpleNamespace(once=once), RedisClock())

    async def send(self, *, request_id: str = "", is_line: bool = False, **fields) -> Client:
        """Serve one chat. What is sent is kept in ``sent``."""
        content = json.dumps({"model": "auto", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()
        headers = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {KEY}".encode())]
        connection = SimpleNamespace(whole_body=lambda: content, watch=lambda _on_gone: None, reads=True)
        scope = {
            "headers": headers, "method": "POST", "raw_path": b"/v1/chat/completions", "query_string": b"",
            "state": {"connection": connection},
        }  # fmt: skip

        async def keep(message: dict) -> None:
            self.sent.append(message)

        client = Client(scope, None, keep, [])
        if is_line:
            hashed = api_keys.hash_key(KEY, SETTINGS.peppers[0])
            client.line = SimpleNamespace(key_hash=hashed, is_paid=False, request_id=request_id)
        await self.lifecycle().complete("chat", client, request_id or new_id("req"))
        return client

    @property
    def shown(self) -> tuple[str, dict[str, str]]:
        """The model of the answer, and its headers."""
        start, body = self.sent[-2:]
        return json.loads(body["body"])["model"], {name.decode(): value.decode() for name, value in start["headers"]}


@pytest.mark.parametrize(("rule", "first", "other"), [("overflow", "large", "small"), ("classified", "small", "large")])
@pytest.mark.parametrize(
    ("refusal", "reason"), [(BUSY, "overflow"), (AWAY, "failed"), (NO_POOL, "able"), (TOO_LARGE, "able")]
)
async def test_a_member_that_is_full_or_cannot_hold_the_request_is_passed_over(rule, first, other, refusal, reason):
    asked = Asked(rule, "small", "large", refusals={first: refusal})
    request_id = new_id("req")
    await asked.send(request_id=request_id)
    assert asked.admitted == [(other, request_id)], "nothing was admitted before, so the id is free"
    assert asked.reasons == [(reason, None)]
    model, headers = asked.shown
    assert (model, headers["x-model-used"], headers["x-route-reason"]) == (other, other, reason)


@pytest.mark.parametrize(
    ("first", "second", "raised"),
    [(BUSY, NO_POOL, BUSY), (NO_POOL, BUSY, BUSY), (NO_POOL, TOO_LARGE, NO_POOL), (AWAY, BUSY, BUSY)],
)
async def test_where_no_member_takes_the_request_its_caller_hears_what_may_pass(first, second, raised):
    asked = Asked("overflow", "small", "large", refusals={"large": first, "small": second})
    with pytest.raises(AppError) as refused:
        await asked.send()
    assert refused.value.code == raised.code
    assert asked.settled == []


async def test_a_request_that_no_member_can_serve_is_counted_once_for_each_and_refused_as_by_the_first():
    asked = Asked("overflow", "small", "middle", "large")
    for number, name in enumerate(("small", "middle", "large")):
        asked.tables.base_models[name] = tiny_route(name, context_tokens=10 + number)
    with pytest.raises(InvalidRequest, match="maximum context length is 12 tokens"):
        await asked.send(max_tokens=9)
    assert asked.counted == ["large", "middle", "small"]


async def test_a_member_whose_context_is_too_small_is_passed_over():
    asked = Asked("classified", "small", "large")
    asked.tables.base_models["small"] = tiny_route("small", context_tokens=12)
    await asked.send(max_tokens=9)
    assert asked.shown[0] == "large"
    assert asked.reasons == [("able", None)]


async def test_a_member_that_fails_before_its_first_byte_is_followed_by_a_request_of_its_own():
    asked = Asked("classified", "small", "large", answers={"small": ReplicaFailed("gone")})
    request_id = new_id("req")
    await asked.send(request_id=request_id)
    (_, first), (_, second) = asked.admitted
    assert first == request_id
    assert is_id(second, "req")
    assert ms_of_id(second) == ms_of_id(first)
    assert asked.reasons == [("classified", None), ("failed", first)]
    assert asked.settled == [first, second]
    assert asked.shown[0] == "large"


@pytest.mark.parametrize("refusal", [NO_POOL, TOO_LARGE, BUSY, AWAY, REFUSED])
async def test_a_cascade_whose_first_member_takes_no_request_asks_the_last(refusal):
    asked = Asked("cascade", "small", "large", refusals={"small": refusal})
    await asked.send()
    assert asked.shown[0] == "large"
    assert [reason for reason, _ in asked.reasons] == ["escalated"]


async def test_a_line_of_a_batch_pays_both_calls_of_a_cascade_and_says_so():
    """Each has 10 prompt tokens and one of output."""
    asked = Asked("cascade", "small", "large", answers={"small": UNSURE})
    await asked.send(request_id=new_id("req"), is_line=True)
    assert (asked.shown[0], asked.shown[1]["x-tenora-price-nanos"]) == ("large", "220")
    asked.answers["large"] = ReplicaFailed("gone")
    await asked.send(request_id=new_id("req"), is_line=True)
    assert (asked.shown[0], asked.shown[1]["x-tenora-price-nanos"]) == ("small", "110"), "shown after all"


@pytest.mark.parametrize(("rule", "answer"), [("cascade", UNSURE), ("classified", ReplicaFailed("gone"))])
async def test_a_line_that_is_sent_again_has_the_ids_of_before(rule, answer):
    line, ids = new_id("req"), []
    for _ in range(2):
        asked = Asked(rule, "small", "large", answers={"small": answer})
        await asked.send(request_id=line, is_line=True)
        ids.append([request_id for _, request_id in asked.admitted])
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2
    asked = Asked(rule, "small", "large", refusals={"small": RequestSettled("ended", code="request_ended")})
    await asked.send(request_id=line, is_line=True)
    assert asked.admitted == [("large", ids[0][1])], "the first call had failed, and the second may be billed"
    asked.refusals["small"] = RequestSettled("billed")
    with pytest.raises(RequestSettled):
        await asked.send(request_id=line, is_line=True)


async def test_a_last_member_that_is_removed_during_the_first_call_gets_no_request():
    asked = Asked("cascade", "small", "large", answers={"small": UNSURE})
    asked.on_answer = lambda: asked.tables.base_models.pop("large", None)
    await asked.send()
    assert [member for member, _ in asked.admitted] == ["small"]
    assert asked.shown[0] == "small"
