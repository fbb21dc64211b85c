"""How many replicas the fleet process wants of a pool that may grow, from reports in a real Redis to rows in a real
Postgres.
"""

from types import SimpleNamespace

import msgspec
import pytest
from prometheus_client import REGISTRY

from control_plane.pools import decisions as history
from control_plane.pools import wanted
from control_plane.pools.settings import FleetSettings
from control_plane.pools.wanted import FleetDecisions
from core import clock, db, redis_keys
from core.contracts.demand import GatewayDemand, ServedDemand, WaitingDemand
from core.contracts.fleet import WantedPool
from tests.fixtures.control_plane.registry_rows import beat

ROOT = "/api/v1/admin/pools"


@pytest.fixture
def fleet(engine, redis) -> FleetDecisions:
    settings = FleetSettings(fleet_shrink_after_s=0, fleet_idle_s=0)
    return FleetDecisions(engine, redis, settings, settle_s=0)


@pytest.fixture
def pool(api, base):
    """A pool of none to five replicas, with a revision in force."""
    make(api, base, "chat", least=0, most=5)


def make(api, base, name: str, *, least: int, most: int, rank_max: int = 16) -> None:
    body = {"name": name, "base_model": base.id, "replicas_min": least, "replicas_max": most, "rank_max": rank_max}
    api.admin.post(ROOT, json=body).raise_for_status()
    api.admin.post(f"{ROOT}/{name}/revisions", json={"weights": "a" * 64, "engine": "vllm"}).raise_for_status()
    api.admin.put(f"{ROOT}/{name}/revision", json={"revision": 1}).raise_for_status()


def report(redis, *waiting: WaitingDemand, gateway: str = "gw_1", served: tuple[ServedDemand, ...] = ()) -> None:
    """A gateway lives and reports."""
    redis.zadd(redis_keys.GATEWAYS, {gateway: redis.time()[0] * 1000})
    redis.set(redis_keys.gateway(gateway), b"{}")
    redis.set(redis_keys.gateway_demand(gateway), msgspec.json.encode(GatewayDemand(waiting=waiting, served=served)))


def asks(
    base, *, requests: int = 1, pages: int = 10, rank: int = 0, closed_pools: tuple[str, ...] = ()
) -> WaitingDemand:
    return WaitingDemand(base_model=base.id, rank=rank, requests=requests, pages=pages, closed_pools=closed_pools)


def entry(redis, pool: str = "chat") -> WantedPool:
    return msgspec.json.decode(redis.hget(redis_keys.FLEET_WANTED, pool), type=WantedPool)


def count(redis, pool: str = "chat") -> int:
    return sum(revision.replicas for revision in entry(redis, pool).revisions)


def rows(api) -> list[dict]:
    return api.admin.get(f"{ROOT}/chat/decisions").raise_for_status().json()["data"]


def missing() -> float:
    return REGISTRY.get_sample_value("tenora_fleet_missing_signals_total", {"pool": "chat"}) or 0.0


def replicas(pool: str, state: str) -> float | None:
    return REGISTRY.get_sample_value("tenora_fleet_replicas", {"pool": pool, "state": state})


def test_a_pool_wakes_grows_and_goes_and_each_change_is_stored_with_its_inputs(api, redis, base, fleet, pool):
    report(redis)
    fleet.run_once()
    assert (count(redis), [row["reason"] for row in rows(api)]) == (0, ["first"])
    report(redis, asks(base, pages=400))
    fleet.run_once()
    assert count(redis) == 1, "the size of a replica is not known"
    assert entry(redis).grew_ms > 0
    beat(redis, base.id, replica_id="rep_1", pool="chat")
    beat(redis, base.id, pool="of another fleet", state="failed")
    redis.hset(redis_keys.replica_held_pages("rep_1"), "total", 90)
    fleet.run_once()
    assert (replicas("chat", "ready"), replicas("chat", "failed"), replicas("", "failed")) == (1, 0, 1)
    assert count(redis) == 5, "490 pages, of which a replica may hold 90, and five replicas are the most"
    newest = rows(api)[0]
    assert (newest["replicas_before"], newest["replicas"], newest["reason"]) == (1, 5, "pages")
    assert (newest["inputs"]["asks"]["pages"], newest["inputs"]["signals"]["held_pages"]) == (6, 90)
    redis.hset(redis_keys.replica_held_pages("rep_1"), "total", 0)
    report(redis)
    fleet.run_once()
    assert (count(redis), rows(api)[0]["reason"], rows(api)[0]["inputs"]["bounds"]["most"]) == (0, "less load", 5)
    assert REGISTRY.get_sample_value("tenora_fleet_wanted_replicas", {"pool": "chat"}) == 0


def test_a_gateway_without_a_report_and_replicas_without_a_heartbeat_keep_the_count(api, redis, base, fleet, pool):
    report(redis, asks(base))
    fleet.run_once()
    report(redis)
    before = missing()
    fleet.run_once()
    assert (count(redis), missing()) == (1, before + 1), "one replica is wanted, and none reports"
    beat(redis, base.id, replica_id="rep_1", pool="chat")
    report(redis, gateway="gw_2")
    redis.delete(redis_keys.gateway_demand("gw_1"))
    fleet.run_once()
    assert (count(redis), missing()) == (1, before + 2)
    redis.delete(redis_keys.gateway("gw_1"))
    fleet.run_once()
    assert (count(redis), missing()) == (0, before + 2), "the first gateway has stopped"


def test_a_new_leader_and_a_redis_without_data_keep_what_was_decided(api, engine, redis, base, fleet, pool):
    report(redis, asks(base))
    beat(redis, base.id, replica_id="rep_1", pool="chat", state="starting", pages_total=0)
    fleet.run_once()
    redis.flushall()
    FleetDecisions(engine, redis, settle_s=0).run_once()
    assert (count(redis), [row["reason"] for row in rows(api)]) == (1, ["requests"])


def test_waiting_requests_ask_the_smallest_pools_that_may_grow_and_serve_them(api, redis, base, fleet):
    make(api, base, "one", least=0, most=5, rank_max=8)
    make(api, base, "two", least=0, most=5, rank_max=8)
    make(api, base, "large", least=0, most=5, rank_max=64)
    make(api, base, "fixed", least=1, most=1, rank_max=8)
    report(redis, asks(base, requests=2, rank=8))
    fleet.run_once()
    assert [count(redis, name) for name in ("one", "two", "large", "fixed")] == [1, 1, 0, 1]
    report(redis, asks(base, rank=16))
    fleet.run_once()
    assert count(redis, "large") == 1


def test_requests_that_a_pool_does_not_serve_ask_the_other_pools(api, redis, base, fleet):
    make(api, base, "nightly", least=0, most=5, rank_max=8)
    make(api, base, "chat", least=0, most=5, rank_max=8)
    make(api, base, "large", least=0, most=5, rank_max=64)
    report(redis, asks(base, rank=8, closed_pools=("nightly",)))
    fleet.run_once()
    assert [count(redis, name) for name in ("nightly", "chat", "large")] == [0, 1, 0]
    report(redis, asks(base, rank=8, closed_pools=("nightly", "chat")))
    fleet.run_once()
    assert [count(redis, name) for name in ("nightly", "large")] == [0, 1]


def test_latencies_and_rates_of_all_gateways_are_signals_of_their_pool(api, redis, base, fleet, pool):
    for gateway, itl_ms in (("gw_1", 40), ("gw_2", 90)):
        served = ServedDemand(
            pool="chat", input_tokens_per_s=100, output_tokens_per_s=10, itl_p95_ms=itl_ms, adapters=("a",)
        )
        report(redis, gateway=gateway, served=(served, msgspec.structs.replace(served, pool="other")))
    beat(redis, base.id, replica_id="rep_1", pool="chat", slots=4)
    redis.hset(redis_keys.replica_held_pages("rep_1"), "total", 10)
    fleet.run_once()
    (row,) = rows(api)
    signals = row["inputs"]["signals"]
    assert (signals["input_tokens_per_s"], signals["output_tokens_per_s"], signals["adapters"]) == (200, 20, 1)
    assert signals["itl_p95_ms"] is None, "the replica has not been there for long"


def test_the_measured_start_is_published_and_kept(api, redis, base, fleet, pool, monkeypatch):
    report(redis, asks(base))
    clock = iter((10.0, 51.2, 60.0))
    monkeypatch.setattr(wanted, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    status = beat(redis, base.id, replica_id="rep_1", pool="chat", state="starting", pages_total=0)
    fleet.run_once()
    assert entry(redis).start_s == 0
    for _ in range(2):
        beat(redis, base.id, replica_id="rep_1", pool="chat", boot_id=status.boot_id)
        fleet.run_once()
        assert entry(redis).start_s == 42


def test_bounds_are_obeyed_without_signals_and_only_the_leader_exports_the_wanted_count(
    api, engine, redis, base, fleet
):
    make(api, base, "chat", least=2, most=4)
    fleet.run_once()
    assert count(redis) == 2
    api.admin.patch(f"{ROOT}/chat", json={"replicas_min": 3}).raise_for_status()
    fleet.run_once()
    assert (count(redis), rows(api)[0]["reason"]) == (3, "bounds")
    with engine.connect() as leader:
        leader.exec_driver_sql("SELECT pg_advisory_lock(7301945137)")
        fleet.run_once()
        assert REGISTRY.get_sample_value("tenora_fleet_wanted_replicas", {"pool": "chat"}) is None
        assert replicas("chat", "ready") is None
        leader.exec_driver_sql("SELECT pg_advisory_unlock(7301945137)")


def test_old_decisions_are_deleted_and_pages_of_the_others_follow_each_other(api, engine, base, pool, monkeypatch):
    monkeypatch.setattr(history, "_KEPT_MAX", 3)
    for replicas in range(5):
        with db.unit_of_work(engine) as session:
            history.record(session, "chat", 0, replicas, "pages", {})
    first = api.admin.get(f"{ROOT}/chat/decisions", params={"limit": 2}).json()
    rest = api.admin.get(f"{ROOT}/chat/decisions", params={"cursor": first["next_cursor"]}).json()
    assert [row["replicas"] for row in first["data"] + rest["data"]] == [4, 3, 2]
    assert api.admin.get(f"{ROOT}/absent/decisions").json()["code"] == "pool_not_found"


def test_latency_targets_are_set_and_removed(api, base, pool):
    changed = api.admin.patch(f"{ROOT}/chat", json={"ttft_target_ms": 2000, "itl_target_ms": 50}).json()
    assert (changed["ttft_target_ms"], changed["itl_target_ms"]) == (2000, 50)
    changed = api.admin.patch(f"{ROOT}/chat", json={"ttft_target_ms": None}).json()
    assert (changed["ttft_target_ms"], changed["itl_target_ms"]) == (None, 50)
    assert api.admin.patch(f"{ROOT}/chat", json={"itl_target_ms": 0}).status_code == 400


def test_a_pool_grows_before_the_time_at_which_it_needed_more_on_earlier_days(
    api, engine, redis, base, pool, monkeypatch
):
    """The fleet process sees three days at nine, and then the fourth a minute before nine."""
    nine_s = (clock.now_ms() // 86_400_000 + 1) * 86_400 + 9 * 3600
    beat(redis, base.id, replica_id="rep_1", pool="chat")
    settings = FleetSettings(fleet_shrink_after_s=0, fleet_idle_s=0)
    fleet = FleetDecisions(engine, redis, settings, settle_s=0)

    def at(unix_s: int, pages: int) -> int:
        monkeypatch.setattr(clock, "now_ms", lambda: unix_s * 1000)
        redis.hset(redis_keys.replica_held_pages("rep_1"), "total", pages)
        report(redis)
        fleet.run_once()
        return count(redis)

    for day in range(3):
        assert [at(nine_s + day * 86_400 + second, pages) for second, pages in ((0, 300), (300, 10))] == [4, 1]
    before_s = nine_s + 3 * 86_400 - 60
    assert at(before_s, 10) == 1, "how long a replica takes to start is not known"
    stored = msgspec.structs.replace(entry(redis), start_s=90)
    redis.hset(redis_keys.FLEET_WANTED, "chat", msgspec.json.encode(stored))
    assert at(before_s, 10) == 4
    newest = rows(api)[0]
    assert newest["reason"] == "forecast"
    assert {name: newest["inputs"]["asks"][name] for name in ("forecast", "pages")} == {"forecast": 4, "pages": 1}
    fleet = FleetDecisions(engine, redis, settings.model_copy(update={"fleet_forecast": False}), settle_s=0)
    assert at(before_s, 10) == 1
