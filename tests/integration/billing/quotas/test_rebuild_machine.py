"""Any order of reserving, checkpointing, settling, expiring, billing and losing Redis, to nothing or to an old copy:
each request is charged once, rebuilt quotas count the charged and the unread usage, and no hold remains.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from billing.quotas import rebuild
from billing.quotas.drift import QuotaDrift
from billing.usage.stream import read_backlog
from core import clock, redis_keys
from core.contracts.grants import TenantGrant
from core.contracts.usage import REST, UsageEvent
from data_plane.gateway.quota.consumption import used_by
from data_plane.gateway.quota.reservation import Checkpoint, Reservations, Settlement
from data_plane.gateway.state.redis_connection import RedisConnection
from tests.fixtures.examples import examples
from tests.fixtures.gateway.published import AMPLE
from tests.fixtures.quota.levels import ask, granted, scripts
from tests.integration.billing.conftest import PRICES, Stage

REPLICA, PROMPT, MOST = "rep_1", 40, 60
HELD = ("concurrent", "kv_pages", "month_held", "spend_held_nanos", "gpu_held_us")


@dataclass
class Request:
    """A request as its gateway knows it. ``charged`` is in the ledger or in a stream that Redis still has."""

    request_id: str
    tenant_id: str
    final: Settlement | None = None
    charged: UsageEvent | None = None


@dataclass
class Gateway:
    """The memory of one gateway process."""

    running: dict[str, Request] = field(default_factory=dict)
    kept: dict[str, Request] = field(default_factory=dict)


class RebuildMachine(RuleBasedStateMachine):
    """Plays gateways' scripts, billing and a Redis that loses data."""

    stage: Stage
    url: str

    @initialize()
    def begin(self) -> None:
        self.stage.redis.flushall()
        self.stage.stream.ensure_group()
        self.grants = {}
        for counts in (True, False):
            tenant_id = self.stage.tenant()
            limits = msgspec.structs.replace(AMPLE, count_cached_tokens=counts)
            self.grants[tenant_id] = TenantGrant(tenant_id=tenant_id, status="active", limits=limits, prices=PRICES)
        self.publish()
        self.loop = asyncio.new_event_loop()
        self.line = RedisConnection(self.url, connect_s=5, stalled_s=30, pending_max=1000)
        self.quota: Reservations = scripts(self.line)
        self.all: list[Request] = []
        self.gateway = Gateway()
        self.copy: dict[bytes, bytes] | None = None

    def publish(self) -> None:
        for tenant_id, grant in self.grants.items():
            self.stage.redis.hset(redis_keys.snapshot("tenants"), tenant_id, msgspec.json.encode(grant))
        self.stage.redis.set(redis_keys.QUOTAS_REBUILT, 1)

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def pick(self, number: int) -> Request:
        running = list(self.gateway.running.values())
        return running[number % len(running)]

    def event(self, request: Request, output: int, *, estimated: bool) -> UsageEvent:
        return self.stage.event(
            request.tenant_id, request_id=request.request_id, output_tokens=output, input_tokens=PROMPT,
            cached_tokens=16, kv_page_ms=700 * output, estimated=estimated,
            outcome="gateway_gone" if estimated else "done", settled_at_ms=clock.now_ms(),
        )  # fmt: skip

    @rule(second=st.booleans())
    def reserve(self, second):
        tenant_id = list(self.grants)[second]
        wanted = ask(MOST, prompts=[PROMPT])
        allowed = granted(tenant_id, prices=PRICES)
        assert not self.run(self.quota.reserve(wanted, allowed, replica_id=REPLICA, replica_pages_max=10**6)).blocked_by
        request = Request(wanted.request_id, tenant_id)
        self.gateway.running[wanted.request_id] = request
        self.all.append(request)

    @precondition(lambda self: self.gateway.running)
    @rule(number=st.integers(0, 9), output=st.integers(1, MOST // 2))
    def note(self, number, output):
        """A checkpoint, if the reservation is still there."""
        request = self.pick(number)
        said = self.event(request, output, estimated=True)
        checkpoint = Checkpoint(event=said, used=used_by(said, self.grants[request.tenant_id]))
        groups = {(request.tenant_id, REPLICA): {request.request_id: checkpoint}}
        self.run(self.quota.renew(groups))

    @precondition(lambda self: self.gateway.running)
    @rule(number=st.integers(0, 9), output=st.integers(MOST // 2, MOST))
    def settle(self, number, output):
        request = self.gateway.running.pop(self.pick(number).request_id)
        said = self.event(request, output, estimated=False)
        request.final = Settlement(
            request_id=request.request_id, tenant_id=request.tenant_id, replica_id=REPLICA,
            used=used_by(said, self.grants[request.tenant_id]), event=said,
        )  # fmt: skip
        assert self.run(self.quota.settle(request.final))
        request.charged = said
        self.gateway.kept[request.request_id] = request

    @rule()
    def leases_run_out(self):
        """Gateways were paused for long: each request is billed by its last checkpoint and may continue."""
        for tenant_id in self.grants:
            leases = redis_keys.tenant_leases(tenant_id)
            there = {each.decode() for each in self.stage.redis.zrange(leases, 0, -1)}
            noted = {each: self.noted(tenant_id, each) for each in there}
            if there:
                self.stage.redis.zadd(leases, dict.fromkeys(there, 1))
                self.run(self.quota.sweep(tenant_id))
            for request_id in there & self.gateway.running.keys():
                request = self.gateway.running[request_id]
                request.charged = request.charged or noted[request_id]

    def noted(self, tenant_id: str, request_id: str) -> UsageEvent | None:
        """The last checkpoint in Redis; a copy may have an older one."""
        said = self.stage.redis.hget(redis_keys.reservation(tenant_id, request_id), "checkpoint")
        return None if said is None else msgspec.json.decode(said, type=UsageEvent)

    @rule()
    def bill(self):
        self.stage.drain()
        self.stage.stream.trim()

    @rule()
    def forget(self):
        """Gateways drop the settlements that billing has recorded."""
        self.bill()
        self.gateway.kept.clear()

    @rule()
    def copy_redis(self):
        names = self.stage.redis.keys("*")
        self.copy = {name: self.stage.redis.dump(name) for name in names}

    @rule(late=st.booleans())
    def redis_loses_everything(self, late):
        self.lose({}, late)

    @precondition(lambda self: self.copy is not None)
    @rule(late=st.booleans(), expired=st.booleans())
    def redis_comes_back_from_the_copy(self, late, expired=False):
        self.lose(self.copy, late, expired)

    def lose(self, copy: dict[bytes, bytes], late: bool, expired: bool = False) -> None:
        """Gateways settle their kept requests again, in time or only after billing has rebuilt quotas, and perhaps only
        after the restored leases have expired.
        """
        self.stage.redis.flushall()
        for name, value in copy.items():
            self.stage.redis.restore(name, 0, value)
        self.stage.stream.ensure_group()
        self.publish()
        for request in self.all:
            if request.charged is not None and request.charged.estimated and not self.has(request.request_id):
                request.charged = None  # no living process knows it
        if late:
            rebuild.rebuild(self.stage.engine, self.stage.redis)
        if expired:
            self.leases_run_out()
        for request in self.gateway.kept.values():
            self.run(self.quota.settle(request.final))
        if not late:
            rebuild.rebuild(self.stage.engine, self.stage.redis)
        self.leases_run_out()  # requests restored with the copy
        for request in self.gateway.running.values():
            taken = granted(request.tenant_id, prices=PRICES).taken(input_tokens=PROMPT, output_tokens=MOST, pages=8)
            self.run(self.quota.restore(request.request_id, taken, replica_id=REPLICA))
        self.compare()

    def has(self, request_id: str) -> bool:
        """Whether its charge is in the ledger or waits in the stream."""
        waiting = (fields[b"event"] for _, fields in self.stage.redis.xrange(redis_keys.USAGE_STREAM))
        if any(msgspec.json.decode(each, type=UsageEvent).request_id == request_id for each in waiting):
            return True
        return self.stage.value("SELECT count(*) FROM usage_records WHERE request_id = :r", r=request_id) > 0

    def compare(self) -> None:
        """Correct double counts as the worker does; then quotas equal the charges."""
        drift = QuotaDrift(self.stage.engine, self.stage.redis, every_s=0, tenants_max=10)
        drift.record_active(self.grants)
        drift.run_once(read_backlog(self.stage.redis))
        assert rebuild.drift(self.stage.engine, self.stage.redis, list(self.grants)) == {}
        for tenant_id, grant in self.grants.items():
            charged = [each.charged for each in self.all if each.tenant_id == tenant_id and each.charged is not None]
            tokens = sum(used.input_tokens + used.output_tokens for used in (used_by(each, grant) for each in charged))
            assert int(self.stage.redis.hget(redis_keys.tenant_quota(tenant_id), "month_used") or 0) == tokens

    def teardown(self):
        if not hasattr(self, "loop"):
            return
        while self.gateway.running:
            self.settle(0, MOST)
        self.leases_run_out()
        self.stage.drain()
        self.compare()
        self.stage.drain()
        assert self.stage.dead_letters() == []
        assert self.stage.pending == 0
        charged: dict[str, Counter[str]] = {}
        for row in self.stage.rows("SELECT request_id, input_tokens, output_tokens, kv_page_ms FROM usage_records"):
            name = row["request_id"].removesuffix(REST)
            charged.setdefault(name, Counter()).update({key: row[key] for key in row if key != "request_id"})
        for request in self.all:
            found = charged.get(request.request_id)
            wanted = request.charged
            assert (found is None) == (wanted is None)
            if wanted is not None:
                assert found == {name: getattr(wanted, name) for name in found}
        for tenant_id in self.grants:
            held = self.stage.redis.hmget(redis_keys.tenant_quota(tenant_id), HELD)
            assert [int(value or 0) for value in held] == [0] * len(HELD)
        self.run(self.line.close())
        self.run(asyncio.sleep(0))
        self.loop.close()


@pytest.mark.hypothesis
def test_rebuilt_quotas_equal_the_charges_and_each_request_is_charged_once(stage, redis_settings):
    RebuildMachine.stage, RebuildMachine.url = stage, redis_settings.redis_url
    run_state_machine_as_test(
        RebuildMachine,
        settings=examples(20, quick=6, stateful_step_count=20, suppress_health_check=list(HealthCheck)),
    )


ORDERS = {
    "nothing was read": ["reserve", "settle", "lose"],
    "a rest after the marker was lost": ["reserve", "note", "leases_run_out", "bill", "lose", "settle"],
    "a rest while the marker is there": ["reserve", "note", "leases_run_out", "bill", "settle"],
    "an estimate was lost unread": ["reserve", "note", "leases_run_out", "lose", "settle"],
    "a copy has what was settled as running": ["reserve", "note", "copy_redis", "settle", "forget", "come_back"],
    "a copy has what was billed as running": ["reserve", "note", "copy_redis", "settle", "bill", "come_back_expired"],
    "a copy knows nothing of an estimate": [
        "copy_redis",
        "reserve",
        "note",
        "leases_run_out",
        "forget",
        "settle",
        "come_back",
    ],
    "a copy knows of nothing": ["copy_redis", "reserve", "settle", "bill", "reserve", "settle", "come_back", "bill"],
}


@pytest.mark.parametrize("late", [pytest.param(False, marks=pytest.mark.soak), True], ids=["in time", "late"])
@pytest.mark.parametrize("order", list(ORDERS.values()), ids=list(ORDERS))
def test_rare_orders_of_events(stage, redis_settings, order, late):
    RebuildMachine.stage, RebuildMachine.url = stage, redis_settings.redis_url
    machine = RebuildMachine()
    machine.begin()
    rules = {
        "reserve": lambda: machine.reserve(False),
        "note": lambda: machine.note(0, 20),
        "settle": lambda: machine.settle(0, 50),
        "lose": lambda: machine.redis_loses_everything(late),
        "come_back": lambda: machine.redis_comes_back_from_the_copy(late),
        "come_back_expired": lambda: machine.redis_comes_back_from_the_copy(late, expired=True),
    }
    for name in order:
        rules.get(name, lambda name=name: getattr(machine, name)())()
    machine.teardown()
