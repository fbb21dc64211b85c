"""Any order of reserving, settling, expiring, sweeping, retrying, moving and month changes: the holds and usage of
three levels equal those of a plain model, within their limits, and each request ends once.
"""

import asyncio
from bisect import bisect
from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from core import redis_keys
from core.contracts.grants import KeyLimits, Prices
from core.contracts.routes import GpuTime
from core.ids import new_id
from data_plane.gateway.quota.allowance import Allowance, PlatformLimits
from data_plane.gateway.quota.consumption import Used
from data_plane.gateway.quota.reservation import Checkpoint, Settlement
from tests.fixtures.examples import examples
from tests.fixtures.quota.levels import ask, connected, event, granted, scripts, stored
from tests.fixtures.quota.model import HELD, USED, Held, Model

REPLICAS = {"rep_one": 40, "rep_two": 25}
PLATFORM = PlatformLimits(concurrent_requests=3, kv_pages=20)
PRICES = Prices(input_nanos=3, cached_input_nanos=1, output_nanos=7, kv_page_second_nanos=11)
GPU_TIME = GpuTime(input_token_us=20_000, output_token_us=40_000)
KEY = KeyLimits(concurrent_requests=1, tokens_per_month=150, spend_nanos_per_month=900)
FREE_KEY = KeyLimits(concurrent_requests=9)
CALLERS = [("tn_a", "key_a1"), ("tn_a", "key_a2"), ("tn_b", "key_b1")]


class QuotaMachine(RuleBasedStateMachine):
    """Plays the model and the server side by side."""

    url: str

    @initialize(
        concurrent=st.sampled_from([2, 5]), pages=st.sampled_from([6, 40]), month=st.sampled_from([200, 3000]),
        money=st.sampled_from([1500, 16_000]), gpu=st.sampled_from([5, 60]), of_key=st.sampled_from([KEY, FREE_KEY]),
        of_all=st.sampled_from([PLATFORM, PlatformLimits()]),
    )  # fmt: skip
    def begin(self, concurrent, pages, month, money, gpu, of_key, of_all) -> None:
        """Limits chosen so that each of them refuses sometimes."""
        self.limits = {"concurrent_requests": concurrent, "kv_pages": pages, "tokens_per_month": month}
        self.limits["gpu_seconds_per_month"] = gpu
        self.callers = {
            ("tn_a", "key_a1"): {"ceiling": money, "charged": 1000, "key": of_key},
            ("tn_a", "key_a2"): {"ceiling": money, "charged": 1000},
            ("tn_b", "key_b1"): {"key": of_key},
        }
        self.platform = of_all
        self.loop = asyncio.new_event_loop()
        self.model = Model()
        self.connection = connected(self.url)
        self.redis, self.line = self.run(self.connection.__aenter__())
        self.run(self.redis.flushall())
        self.run(self.redis.set(redis_keys.QUOTAS_REBUILT, 1))
        self.scripts = scripts(self.line)

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def pick(self, number: int) -> Held:
        return list(self.model.live.values())[number % len(self.model.live)]  # by age, because ids differ in each run

    def expire_due(self, tenant_id: str) -> int:
        """What every script does first for its tenant."""
        due = [held for held in self.model.live.values() if held.request_id in self.model.overdue]
        due = [held for held in due if held.allowance.tenant_id == tenant_id]
        for held in due:
            del self.model.live[held.request_id]
            self.model.overdue.discard(held.request_id)
            if held.checkpoint is not None:
                self.model.use(held, held.checkpoint)
                self.model.events += 1
            if held.checkpoint is None or held.checkpoint.input_tokens + held.checkpoint.output_tokens > 0:
                self.model.swept.append(held)
        return len(due)

    @rule(
        caller=st.sampled_from(CALLERS), replica=st.sampled_from(sorted(REPLICAS)),
        prompts=st.lists(st.integers(0, 60), min_size=1, max_size=3),
        tokens=st.one_of(st.integers(1, 9), st.integers(1, 400)), least=st.integers(1, 400),
    )  # fmt: skip
    def reserve(self, caller, replica, prompts, tokens, least, request_id=None):
        tenant_id, key_id = caller
        allowed = granted(
            tenant_id, prices=PRICES, platform=self.platform, key_id=key_id, gpu_time=GPU_TIME, **self.callers[caller],
            **self.limits,
        )  # fmt: skip
        self.expire_due(tenant_id)
        least = min(least, tokens)
        wanted = ask(tokens, prompts=prompts, least=least, request_id=request_id)
        verdict = self.run(
            self.scripts.reserve(wanted, allowed, replica_id=replica, replica_pages_max=REPLICAS[replica])
        )
        room = range(least, tokens + 1)  # a request that fits also fits with fewer tokens
        number = (
            least
            - 1
            + bisect(
                room,
                0,
                key=lambda count: (
                    not self.model.fits(allowed, self.model.needs(allowed, prompts=prompts, tokens=count))
                ),
            )
        )
        need = self.model.needs(allowed, prompts=prompts, tokens=number)
        if number < least:
            assert verdict.blocked_by not in ("", "replica_pages")
            assert verdict.fits < least or verdict.blocked_by == "concurrent_requests"
            return
        there = sum(held.pages for held in self.model.live.values() if held.replica == replica)
        if there + need["kv_pages"] > REPLICAS[replica]:
            assert verdict.blocked_by == "replica_pages"
            return
        assert (verdict.blocked_by, verdict.max_tokens, verdict.pages) == ("", number, need["kv_pages"])
        self.model.live[wanted.request_id] = Held(
            wanted.request_id, allowed, key_id, replica, sum(prompts), len(prompts) * number, need["kv_pages"],
            need["spend_held_nanos"], need["gpu_held_us"],
        )  # fmt: skip
        self.reached(allowed)

    @rule(
        caller=st.sampled_from(CALLERS), replica=st.sampled_from(sorted(REPLICAS)),
        tokens=st.lists(st.integers(1, 150), min_size=2, max_size=4),
    )  # fmt: skip
    def reserve_several(self, caller, replica, tokens):
        """Holds count like usage."""
        for each in tokens:
            self.reserve(caller, replica, [0], each, each)

    def reached(self, allowed: Allowance) -> None:
        """Earlier charges count even if Redis never knew of them."""
        for level in allowed.levels:
            used = self.model.used.setdefault(level.quota, Counter())
            used["spent_nanos"] = max(used["spent_nanos"], level.charged_nanos)

    @precondition(lambda self: self.model.live)
    @rule(number=st.integers(0, 99), tokens=st.integers(1, 100))
    def retry_a_reservation(self, number, tokens):
        """Its answer was lost: its first reservation is returned before the second. One that ran and whose lease is
        over is charged by its checkpoint, and reserves nothing (``test_lease_expiry``).
        """
        held = self.pick(number)
        if held.checkpoint is not None and held.request_id in self.model.overdue:
            return
        del self.model.live[held.request_id]
        self.model.overdue.discard(held.request_id)
        caller = (held.allowance.tenant_id, held.key_id)
        self.reserve(caller, held.replica, [0], tokens, tokens, request_id=held.request_id)

    def part(self, held: Held, percent: int) -> Used:
        return Used(
            input_tokens=held.input * percent // 100, output_tokens=held.output * percent // 100,
            cost_nanos=held.nanos * percent // 100, gpu_us=held.gpu_us * percent // 100,
        )  # fmt: skip

    def settle_now(self, held: Held, used: Used) -> bool:
        tenant_id, billed = held.allowance.tenant_id, used.input_tokens + used.output_tokens > 0
        billed_as = event(held.request_id, tenant_id, key_id=held.key_id) if billed else None
        return self.run(
            self.scripts.settle(
                Settlement(
                    request_id=held.request_id,
                    tenant_id=tenant_id,
                    replica_id=held.replica,
                    used=used,
                    event=billed_as,
                )
            )
        )

    @precondition(lambda self: self.model.live)
    @rule(number=st.integers(0, 99), percent=st.integers(0, 100))
    def settle(self, number, percent):
        held = self.pick(number)
        used = self.part(held, percent)
        assert self.settle_now(held, used)
        del self.model.live[held.request_id]
        self.model.overdue.discard(held.request_id)
        self.model.use(held, used)
        self.model.events += used.input_tokens + used.output_tokens > 0
        self.model.ended.append((held.request_id, held.allowance.tenant_id, held.replica))

    @precondition(lambda self: self.model.ended)
    @rule(number=st.integers(0, 99), tokens=st.integers(0, 100))
    def settle_again(self, number, tokens):
        request_id, tenant_id, replica = self.model.ended[number % len(self.model.ended)]
        assert not self.run(
            self.scripts.settle(
                Settlement(
                    request_id=request_id, tenant_id=tenant_id, replica_id=replica, used=Used(input_tokens=tokens),
                    event=event(request_id, tenant_id),
                )
            )
        )  # fmt: skip

    @precondition(lambda self: self.model.swept)
    @rule(number=st.integers(0, 99))
    def settle_after_the_lease_ran_out(self, number):
        """Nothing is held after the lease: the request still ends once, as unused or by its checkpoint. Billing
        receives the exact usage and knows the estimate.
        """
        held = self.model.swept.pop(number % len(self.model.swept))
        used = held.checkpoint or Used()
        assert self.settle_now(held, used)
        self.model.events += used.input_tokens + used.output_tokens > 0
        self.model.ended.append((held.request_id, held.allowance.tenant_id, held.replica))

    @precondition(lambda self: self.model.live)
    @rule(number=st.integers(0, 99), percent=st.integers(1, 100), grown=st.booleans())
    def renew(self, number, percent, grown):
        held = self.pick(number)
        used = self.part(held, percent)
        tenant_id = held.allowance.tenant_id
        checkpoint = Checkpoint(event=event(held.request_id, tenant_id), used=used) if grown else None
        unknown = new_id("req")
        groups = {(tenant_id, held.replica): {held.request_id: checkpoint, unknown: None}}
        assert self.run(self.scripts.renew(groups)) == (1, [], [unknown])
        self.model.overdue.discard(held.request_id)
        held.checkpoint = used if grown else held.checkpoint

    @precondition(lambda self: self.model.live)
    @rule(number=st.integers(0, 99))
    def let_a_lease_run_out(self, number):
        """As after the death of its gateway."""
        held = self.pick(number)
        self.model.overdue.add(held.request_id)
        self.run(self.redis.zadd(redis_keys.tenant_leases(held.allowance.tenant_id), {held.request_id: 1}))

    @rule(tenant_id=st.sampled_from(["tn_a", "tn_b"]))
    def sweep(self, tenant_id):
        assert self.run(self.scripts.sweep(tenant_id)) == self.expire_due(tenant_id)
        live = any(held.allowance.tenant_id == tenant_id for held in self.model.live.values())
        assert (self.run(self.redis.zscore(redis_keys.LEASED_TENANTS, tenant_id)) is not None) == live

    @precondition(lambda self: self.model.live)
    @rule(number=st.integers(0, 99))
    def move(self, number):
        held = self.pick(number)
        new = "rep_two" if held.replica == "rep_one" else "rep_one"
        there = sum(each.pages for each in self.model.live.values() if each.replica == new)
        moved = self.run(
            self.scripts.move(
                held.request_id, held.pages, tenant_id=held.allowance.tenant_id, old_replica_id=held.replica,
                replica_id=new, replica_pages_max=REPLICAS[new],
            )
        )  # fmt: skip
        assert bool(moved) == (there + held.pages <= REPLICAS[new])
        assert moved.replica_pages_held == there + (held.pages if moved else 0)
        held.replica = new if moved else held.replica

    @precondition(lambda self: self.model.live)
    @rule()
    def redis_loses_its_data_and_is_restored(self):
        """Usage and holds are lost; then billing restores the usage from the ledger, and gateways restore the holds.
        Checkpoints of requests are lost too, and an ended request may be settled again.
        """
        self.run(self.redis.flushall())
        self.run(self.redis.set(redis_keys.QUOTAS_REBUILT, 1))
        for quota, used in self.model.used.items():
            self.run(self.redis.hset(quota, mapping={"month": self.month(), **{name: used[name] for name in USED}}))
        for held in self.model.live.values():
            taken = held.allowance.taken(input_tokens=held.input, output_tokens=held.output, pages=held.pages)
            assert (taken.nanos, taken.gpu_us) == (held.nanos, held.gpu_us)
            for first in (True, False):
                restored = self.scripts.restore(held.request_id, taken, replica_id=held.replica)
                assert self.run(restored) == first
            held.checkpoint = None
        self.model.overdue.clear()
        self.model.ended.clear()
        self.model.swept.clear()
        self.model.events = 0

    def month(self) -> str:
        seconds, _ = self.run(self.redis.time())
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m")

    @rule()
    def the_month_turns(self):
        for quota, used in self.model.used.items():
            self.run(self.redis.hset(quota, "month", "2001-01"))
            used["month_used"] = used["month_spent_nanos"] = used["month_gpu_us"] = 0

    @invariant()
    def the_server_is_as_the_model(self):
        if not hasattr(self, "model"):
            return
        quotas = sorted(self.model.used)
        *levels, one, two, events = self.run(self.look(quotas))
        for quota, fields in zip(quotas, levels, strict=True):
            used, held = self.model.used[quota], self.model.holds(quota)
            over = fields.get(b"month") == b"2001-01"  # not read since the month changed
            found = {name: int(fields.get(name.encode(), 0)) for name in (*HELD, *USED)}
            assert {name: found[name] for name in HELD} == {name: held[name] for name in HELD}
            for name in USED:
                assert found[name] == used[name] or (over and name != "spent_nanos"), name
        for replica, found in zip(sorted(REPLICAS), (one, two), strict=True):
            assert int(found or 0) == sum(held.pages for held in self.model.live.values() if held.replica == replica)
        assert events == self.model.events

    async def look(self, quotas: list[str]) -> list:
        async with self.redis.pipeline() as pipe:
            for quota in quotas:
                pipe.hgetall(quota)
            for replica in sorted(REPLICAS):
                pipe.hget(redis_keys.replica_held_pages(replica), "total")
            pipe.xlen(redis_keys.USAGE_STREAM)
            return await pipe.execute()

    def teardown(self):
        if not hasattr(self, "model"):
            return
        for held in list(self.model.live.values()):
            assert self.settle_now(held, Used())
        for quota in self.model.used:
            found = self.run(stored(self.redis, quota))
            assert [found.get(name, 0) for name in HELD] == [0] * len(HELD)
        for tenant_id in ("tn_a", "tn_b"):
            assert self.run(self.redis.zcard(redis_keys.tenant_leases(tenant_id))) == 0
        assert self.run(self.redis.keys("*:reservation:*")) == []
        self.run(self.connection.__aexit__(None, None, None))
        self.loop.close()


@pytest.mark.hypothesis
def test_no_order_of_events_oversells_leaks_or_settles_twice(redis_settings):
    QuotaMachine.url = redis_settings.redis_url
    run_state_machine_as_test(
        QuotaMachine,
        settings=examples(150, stateful_step_count=30, suppress_health_check=list(HealthCheck)),
    )


WIDE = {
    "concurrent": 50, "pages": 40, "month": 3000, "money": 90_000, "gpu": -1, "of_key": FREE_KEY,
    "of_all": PlatformLimits(),
}  # fmt: skip


@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller[1])
@pytest.mark.parametrize(
    "narrow",
    [{"concurrent": 2}, {"pages": 6}, {"month": 200}, {"money": 1500}, {"of_key": KEY}, {"of_all": PLATFORM}],
    ids=lambda narrow: next(iter(narrow)),
)
def test_each_limit_alone_counts_holds_and_usage(redis_settings, caller, narrow):
    QuotaMachine.url = redis_settings.redis_url
    machine = QuotaMachine()
    machine.begin(**WIDE | narrow)
    for percent in (100, 40, 0):
        machine.reserve_several(caller, "rep_one", [30, 60, 25, 5, 5])
        machine.the_server_is_as_the_model()
        while machine.model.live:
            machine.settle(0, percent)
        machine.the_server_is_as_the_model()
    machine.teardown()
