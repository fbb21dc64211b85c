"""The quota scripts on a real server: under any interleaving nothing is oversold, leaked or settled twice."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from core import keys
from core.contracts import Limits, UsageEvent
from core.ids import new_id
from data_plane.gateway.redis_line import RedisLine
from data_plane.gateway.reservation import Ask, Reservations, Script, Settlement
from tests.fixtures.published import AMPLE

REPLICAS = {"rep_one": 40, "rep_two": 25}
TIGHT = msgspec.structs.replace(
    AMPLE, concurrent_requests=5, kv_pages=30, tokens_per_month=3000
)  # fmt: skip


def usage(request_id: str, tenant_id: str, tokens: int) -> UsageEvent:
    return UsageEvent(
        request_id=request_id, tenant_id=tenant_id, key_id="key_1", base_model="m", adapter_id=None, revision_id=None,
        replica_id="rep_one", outcome="done", started_at_ms=0, settled_at_ms=0, input_tokens=tokens, cached_tokens=0,
        output_tokens=0, kv_page_ms=0,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[Redis, RedisLine]]:
    line = RedisLine(url, connect_s=5, stalled_s=30, pending_max=10_000)
    async with Redis.from_url(url) as redis:
        yield redis, line
        await line.close()
        await asyncio.sleep(0)  # the transport closes in the loop's next turn


def scripts(line: RedisLine) -> Reservations:
    return Reservations(line, lease_s=30, settled_marker_s=60)


class Model:
    """What must be true, kept in plain Python beside the server."""

    def __init__(self, redis: Redis, line: RedisLine, limits: Limits = TIGHT) -> None:
        self.redis = redis
        self.limits = limits
        self.tenant_id = new_id("tn")
        self.reservations = scripts(line)
        self.held: dict[str, tuple[str, int, int]] = {}  # request -> replica, pages, tokens
        self.ended: list[tuple[str, str]] = []
        self.used = 0

    async def reserve(self, replica_id: str, tokens: int, pages: int) -> str:
        ask = Ask(request_id=new_id("req"), tenant_id=self.tenant_id, tokens=tokens, pages=pages)
        verdict = await self.reservations.reserve(
            ask, self.limits, replica_id=replica_id, replica_pages_max=REPLICAS[replica_id]
        )  # fmt: skip
        month = self.used + sum(held[2] for held in self.held.values()) + tokens
        mine = sum(held[1] for held in self.held.values()) + pages
        theirs = sum(held[1] for held in self.held.values() if held[0] == replica_id) + pages
        expected = (
            "tokens_per_month" if month > self.limits.tokens_per_month
            else "concurrent_requests" if len(self.held) >= self.limits.concurrent_requests
            else "kv_pages" if mine > self.limits.kv_pages
            else "replica_pages" if theirs > REPLICAS[replica_id]
            else ""
        )  # fmt: skip
        assert verdict.blocked_by == expected
        if not expected:
            self.held[ask.request_id] = (replica_id, pages, tokens)
        return ask.request_id

    async def settle(self, request_id: str, replica_id: str, used: int) -> bool:
        event = usage(request_id, self.tenant_id, used)
        first = await self.reservations.settle(
            Settlement(
                request_id=request_id, tenant_id=self.tenant_id, replica_id=replica_id, used_tokens=used, event=event
            )
        )
        self.held.pop(request_id, None)
        self.used += used if first else 0
        self.ended.append((request_id, replica_id))
        return first

    async def expire(self, request_id: str) -> None:
        """Its lease runs out, as it would had its gateway died."""
        await self.redis.zadd(keys.tenant_leases(self.tenant_id), {request_id: 1})
        await self.redis.zadd(keys.replica_held(self.held[request_id][0]), {request_id: 1})
        self.held.pop(request_id)

    async def check(self) -> None:
        stored = await self.redis.hgetall(keys.tenant_quota(self.tenant_id))
        quota = {name.decode(): value.decode() for name, value in stored.items()}
        for name in ("concurrent", "kv_pages", "month_held", "month_used"):
            assert int(quota.get(name, 0)) >= 0
        assert int(quota.get("month_used", 0)) == self.used
        assert int(quota.get("concurrent", 0)) <= self.limits.concurrent_requests
        assert int(quota.get("kv_pages", 0)) <= self.limits.kv_pages
        assert self.used + int(quota.get("month_held", 0)) <= self.limits.tokens_per_month

    async def close(self) -> None:
        """Settle everything; nothing may be held after that."""
        for request_id, held in list(self.held.items()):
            assert await self.settle(request_id, held[0], 0)
        peek = Ask(request_id=new_id("req"), tenant_id=self.tenant_id, tokens=0, pages=0)
        for replica_id in REPLICAS:  # the next reservation is what gives expired leases back
            await self.reservations.reserve(peek, self.limits, replica_id=replica_id, replica_pages_max=-1)
            assert int(await self.redis.hget(keys.replica_held_pages(replica_id), "total") or 0) == 0
            assert await self.redis.zcard(keys.replica_held(replica_id)) == 0
        quota = await self.redis.hmget(keys.tenant_quota(self.tenant_id), "concurrent", "kv_pages", "month_held")
        assert [int(value or 0) for value in quota] == [0, 0, 0]
        assert await self.redis.zcard(keys.tenant_leases(self.tenant_id)) == 0
        assert await self.redis.keys(keys.reservation(self.tenant_id, "*").replace("{", "\\{")) == []


steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["reserve", "reserve", "reserve", "settle", "settle_again", "expire", "settle_expired", "renew", "move"]
        ),
        st.integers(1, 400),
        st.integers(1, 15),
        st.integers(0, 1 << 20),
    ),
    min_size=5,
    max_size=60,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_no_order_of_events_oversells_leaks_or_settles_twice(redis_settings, steps):
    asyncio.run(_play(redis_settings.redis_url, steps))


async def _play(url: str, steps) -> None:
    async with connected(url) as (redis, line):
        await redis.flushall()
        model = Model(redis, line)
        expired: list[tuple[str, str]] = []
        for step, tokens, pages, pick in steps:
            live = sorted(model.held)
            chosen = live[pick % len(live)] if live else None
            if step == "reserve":
                await model.reserve(sorted(REPLICAS)[pick % 2], tokens, pages)
            elif step == "settle_again" and model.ended:
                request_id, replica_id = model.ended[pick % len(model.ended)]
                assert not await model.settle(request_id, replica_id, tokens)
            elif step == "settle_expired" and expired:
                # It ran after all: what it used counts, if the plan's month still has room for our invariant.
                request_id, replica_id = expired.pop()
                if model.used + sum(held[2] for held in model.held.values()) + tokens <= model.limits.tokens_per_month:
                    assert await model.settle(request_id, replica_id, tokens)
            elif chosen is None:
                continue
            elif step == "settle":
                replica_id, _, ceiling = model.held[chosen]
                assert await model.settle(chosen, replica_id, min(tokens, ceiling))
            elif step == "expire":
                replica_id = model.held[chosen][0]
                await model.expire(chosen)
                expired.append((chosen, replica_id))
            elif step == "renew":
                groups = {(model.tenant_id, model.held[chosen][0]): [chosen, new_id("req")]}
                assert await model.reservations.renew(groups) == 1
            elif step == "move":
                await _move(model, chosen)
            await model.check()
        events = await redis.xlen(keys.USAGE_STREAM)
        assert events == len({request_id for request_id, _ in model.ended})
        await model.close()


async def _move(model: Model, chosen: str) -> None:
    old, pages, tokens = model.held[chosen]
    new = "rep_two" if old == "rep_one" else "rep_one"
    held = sum(one[1] for one in model.held.values() if one[0] == new)
    moved = await model.reservations.move(
        chosen, pages, old_replica_id=old, replica_id=new, replica_pages_max=REPLICAS[new]
    )  # fmt: skip
    assert moved == (held + pages <= REPLICAS[new])
    if moved:
        model.held[chosen] = (new, pages, tokens)


async def test_many_gateways_at_the_edge_admit_exactly_what_fits(redis_settings):
    """Twelve connections race with random settlements between; the ceiling of each limit is never passed."""
    async with Redis.from_url(redis_settings.redis_url) as redis:
        limits = msgspec.structs.replace(AMPLE, concurrent_requests=20, kv_pages=50, tokens_per_month=5000)
        tenant_id, choice = new_id("tn"), random.Random(7)
        finished = asyncio.Event()

        async def gateway(seed: int) -> int:
            dice, spent = random.Random(seed), 0
            async with connected(redis_settings.redis_url) as (_, mine):
                reservations = scripts(mine)
                for _ in range(60):
                    tokens = dice.randint(1, 60)
                    ask = Ask(request_id=new_id("req"), tenant_id=tenant_id, tokens=tokens, pages=dice.randint(1, 6))
                    verdict = await reservations.reserve(ask, limits, replica_id="rep_one", replica_pages_max=45)
                    if verdict.blocked_by:
                        continue
                    await asyncio.sleep(dice.random() / 500)
                    amount = dice.randint(0, tokens)
                    done = Settlement(
                        request_id=ask.request_id, tenant_id=tenant_id, replica_id="rep_one",
                        used_tokens=amount, event=None,
                    )  # fmt: skip
                    results = await asyncio.gather(reservations.settle(done), reservations.settle(done))
                    assert sorted(results) == [False, True]
                    spent += amount
            return spent

        async def watch() -> None:
            while not finished.is_set():
                quota = await redis.hmget(
                    keys.tenant_quota(tenant_id), "concurrent", "kv_pages", "month_held", "month_used"
                )
                concurrent, pages, held, spent = (int(value or 0) for value in quota)
                assert 0 <= concurrent <= 20
                assert 0 <= pages <= 45
                assert held >= 0
                assert spent + held <= 5000
                await asyncio.sleep(0)

        watcher = asyncio.create_task(watch())
        used = sum(await asyncio.gather(*(gateway(choice.randint(0, 1 << 30)) for _ in range(12))))
        assert not watcher.done()
        finished.set()
        await watcher
        assert int(await redis.hget(keys.tenant_quota(tenant_id), "month_used")) == used


@pytest.mark.parametrize(("limit", "cost"), [(60, 1), (7, 1), (100_000, 977)])
async def test_rates_admit_a_burst_of_the_limit_and_not_one_more(redis_settings, limit, cost):
    async with connected(redis_settings.redis_url) as (_, line):
        reservations = scripts(line)
        name = "requests_per_minute" if cost == 1 else "tokens_per_minute"
        limits = msgspec.structs.replace(AMPLE, **{name: limit})
        tenant_id, taken = new_id("tn"), 0
        while True:
            ask = Ask(request_id=new_id("req"), tenant_id=tenant_id, tokens=cost, pages=1)
            verdict = await reservations.reserve(ask, limits, replica_id="rep_one", replica_pages_max=10**6)
            if verdict.blocked_by:
                break
            taken += cost
        assert verdict.blocked_by == name
        assert limit - cost < taken <= limit + limit // 60 + cost  # a second of refill at most has come meanwhile
        assert 0 < verdict.wait_us <= 60_000_000 * cost // limit + 1


async def test_what_a_request_did_not_use_comes_back_to_its_minute(redis_settings):
    async with connected(redis_settings.redis_url) as (redis, line):
        model = Model(redis, line, msgspec.structs.replace(AMPLE, tokens_per_minute=1000))
        before = await _remaining(model)
        request_id = await model.reserve("rep_one", 900, 1)
        assert await _remaining(model) <= 110
        await model.settle(request_id, "rep_one", 100)
        assert before - 101 <= await _remaining(model) <= 1000


async def _remaining(model: Model) -> int:
    ask = Ask(request_id=new_id("req"), tenant_id=model.tenant_id, tokens=0, pages=0)
    verdict = await model.reservations.reserve(ask, model.limits, replica_id="rep_one", replica_pages_max=-1)
    return verdict.tokens_remaining


async def test_the_month_is_the_servers_in_utc(redis_settings):
    """The calendar arithmetic in Lua agrees with Python's, for a day of every month over 60 years."""
    source = Script("reserve").source.split("-- All limits or none")[0]
    async with Redis.from_url(redis_settings.redis_url) as redis:
        for year in range(2024, 2084):
            for month in range(1, 13):
                for day in (1, 28):
                    instant = datetime(year, month, day, 23, 59, 59, tzinfo=UTC)
                    found = await redis.eval(source + "return month_of(tonumber(ARGV[1]))", 0, int(instant.timestamp()))
                    assert found.decode() == f"{year:04d}-{month:02d}"


async def test_a_late_refund_gives_back_only_what_time_has_not_given_back(redis_settings):
    """A reserves a minute's worth; a minute later the bucket is full again and B takes it; then A settles unused."""
    limits = msgspec.structs.replace(AMPLE, tokens_per_minute=60)
    tenant_id = new_id("tn")
    async with connected(redis_settings.redis_url) as (redis, line):
        reservations = scripts(line)

        async def reserve() -> tuple[str, str]:
            ask = Ask(request_id=new_id("req"), tenant_id=tenant_id, tokens=60, pages=1)
            verdict = await reservations.reserve(ask, limits, replica_id="rep_one", replica_pages_max=40)
            return ask.request_id, verdict.blocked_by

        first, blocked = await reserve()
        assert not blocked
        for key, field in (
            (keys.tenant_quota(tenant_id), "tokens_tat_us"),
            (keys.reservation(tenant_id, first), "tokens_end_us"),
        ):
            await redis.hincrby(key, field, -60_000_000)  # as if a minute had passed
        _, blocked = await reserve()
        assert not blocked
        await reservations.settle(
            Settlement(request_id=first, tenant_id=tenant_id, replica_id="rep_one", used_tokens=0, event=None)
        )
        _, blocked = await reserve()
        assert blocked == "tokens_per_minute"


async def test_an_early_refund_gives_back_all_that_was_not_used(redis_settings):
    limits = msgspec.structs.replace(AMPLE, tokens_per_minute=60)
    tenant_id = new_id("tn")
    async with connected(redis_settings.redis_url) as (_, line):
        reservations = scripts(line)
        for _ in range(5):
            ask = Ask(request_id=new_id("req"), tenant_id=tenant_id, tokens=50, pages=1)
            verdict = await reservations.reserve(ask, limits, replica_id="rep_one", replica_pages_max=40)
            assert not verdict.blocked_by
            await reservations.settle(
                Settlement(
                    request_id=ask.request_id, tenant_id=tenant_id, replica_id="rep_one", used_tokens=1, event=None
                )
            )
