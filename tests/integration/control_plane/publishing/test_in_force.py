"""What the API confirms is in force at every gateway: each change is tried at both gateways right after its answer."""

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import httpx
import msgspec
import pytest
from redis import Redis

from core import redis_keys
from core.contracts.usage import UsageEvent
from tests.conftest import wait_until
from tests.fixtures.control_plane.api import LIMITS, PRICES, Api, Tenant, running_api
from tests.fixtures.control_plane.ready_revisions import ready_revision
from tests.fixtures.control_plane.two_gateways import AMPLE, Platform, two_gateways
from tests.fixtures.gateway.tiny_tokenizer import tiny_route

BASE = tiny_route().id


@pytest.fixture
def platform(api, settings, engine, redis_settings, tmp_path) -> Iterator[Platform]:
    with two_gateways(api, settings, engine, redis_settings.redis_url, tmp_path, acknowledge_wait_ms=30_000) as up:
        yield up


@pytest.fixture
def waiting_api(settings) -> Iterator[Api]:
    """An API that waits for gateways, shortly: nothing publishes its changes."""
    with running_api(replace(settings, web=settings.web.model_copy(update={"acknowledge_wait_ms": 200}))) as running:
        yield running


def confirmed(answer: httpx.Response) -> dict:
    """The body of an answer that every gateway acknowledged."""
    answer.raise_for_status()
    assert answer.status_code != 202, answer.text
    return answer.json() if answer.content else {}


class Gateways:
    """Both gateways, asked one after the other."""

    def __init__(self, platform: Platform) -> None:
        self._clients = [httpx.Client(base_url=gateway.url, timeout=30) for gateway in platform.gateways]

    def __enter__(self) -> "Gateways":
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()

    def statuses(self, key: str, path: str = "/v1/models") -> set[int]:
        return {answer.status_code for answer in self._ask(key, path)}

    def found(self, key: str, path: str) -> list[dict]:
        return [answer.raise_for_status().json() for answer in self._ask(key, path)]

    def output_tokens(self, key: str, model: str = "bot") -> list[int]:
        return [each["limits"]["output_tokens"] for each in self.found(key, f"/v1/models/{model}")]

    def completions(self, key: str) -> set[int]:
        """The statuses of a request that costs something."""
        body = {"model": BASE, "prompt": "Hi", "max_tokens": 1}
        headers = {"Authorization": f"Bearer {key}"}
        return {client.post("/v1/completions", json=body, headers=headers).status_code for client in self._clients}

    def _ask(self, key: str, path: str) -> list[httpx.Response]:
        headers = {"Authorization": f"Bearer {key}"}
        return [client.get(path, headers=headers) for client in self._clients]


def change_keys_limits_aliases_and_status(platform: Platform, rounds: int) -> float:
    """Returns the longest time in seconds from the call that revokes a key until both gateways refuse the key."""
    slowest_s = 0.0
    tenant, admin = platform.tenant, platform.api.admin
    of_tenant = f"/api/v1/admin/tenants/{tenant.id}"
    with Gateways(platform) as gateways:
        for number in range(rounds):
            key = confirmed(tenant.http.post("/api/v1/api-keys", json={"name": f"round {number}"}))
            assert gateways.statuses(key["key"]) == {200}

            limits = {"limits": {"output_tokens": 16 + number}}
            confirmed(admin.patch(of_tenant, json=limits))
            assert gateways.output_tokens(key["key"]) == [16 + number] * 2

            target = list(platform.revisions)[number % len(platform.revisions)]
            confirmed(tenant.http.put("/api/v1/adapters/bot/aliases/prod", json={"revision": target}))
            assert [each["revisions"] for each in gateways.found(key["key"], "/v1/models/bot")] == [{target: 1}] * 2

            confirmed(admin.patch(of_tenant, json={"status": "suspended"}))
            assert gateways.statuses(key["key"]) == {403}
            confirmed(admin.patch(of_tenant, json={"status": "active"}))
            assert gateways.statuses(key["key"]) == {200}

            began = time.monotonic()
            confirmed(tenant.http.delete(f"/api/v1/api-keys/{key['id']}"))
            assert gateways.statuses(key["key"]) == {401}
            slowest_s = max(slowest_s, time.monotonic() - began)
    return slowest_s


def change_plans_and_tenants(platform: Platform, rounds: int) -> None:
    """A version of the plan, a change of the plan, and a tenant that begins and ends."""
    admin, other = platform.api.admin, platform.api.plan(limits=AMPLE | {"output_tokens": 9})
    plan = platform.api.plan(limits=AMPLE)
    tenant = platform.api.tenant(plan["name"])
    of_plan, of_tenant = f"/api/v1/admin/plans/{plan['id']}", f"/api/v1/admin/tenants/{tenant.id}"
    with Gateways(platform) as gateways:
        for number in range(rounds):
            version = {"limits": LIMITS | AMPLE | {"output_tokens": 16 + number}, "prices": PRICES}
            if number % 2:
                confirmed(admin.post(f"{of_plan}/versions", json=version))
            else:
                draft = admin.post(f"{of_plan}/drafts", json=version).raise_for_status().json()
                confirmed(admin.post(f"{of_plan}/drafts/{draft['id']}/publish", json={}))
            assert gateways.output_tokens(tenant.key, BASE) == [16 + number] * 2

            confirmed(admin.put(f"{of_tenant}/plan", json={"plan": other["name"]}))
            assert gateways.output_tokens(tenant.key, BASE) == [9] * 2
            confirmed(admin.put(f"{of_tenant}/plan", json={"plan": plan["name"]}))
            assert gateways.output_tokens(tenant.key, BASE) == [16 + number] * 2

            new = confirmed(admin.post("/api/v1/admin/tenants", json={"name": "new", "plan": plan["name"]}))
            key = confirmed(admin.post(f"/api/v1/admin/tenants/{new['id']}/api-keys", json={}))["key"]
            assert gateways.statuses(key) == {200}
            confirmed(admin.post(f"/api/v1/admin/tenants/{new['id']}/close"))
            assert gateways.statuses(key) == {403}


def change_limits_of_spending(platform: Platform, rounds: int) -> None:
    """A limit of the tenant's own on everything and on a key, a credit limit, and prepaid credit."""
    tenant, admin = platform.tenant, platform.api.admin
    of_tenant = f"/api/v1/admin/tenants/{tenant.id}"
    key = confirmed(tenant.http.post("/api/v1/api-keys", json={}))
    nothing = {"window": "day", "amount_nanos": 0}
    with Gateways(platform) as gateways:
        assert gateways.completions(key["key"]) == {200}
        for _ in range(rounds):
            for subject in ({"scope": "tenant"}, {"scope": "key", "subject_id": key["id"]}):
                limit = confirmed(tenant.http.post("/api/v1/spend-limits", json=nothing | subject))
                assert gateways.completions(key["key"]) == {429}
                confirmed(tenant.http.delete(f"/api/v1/spend-limits/{limit['id']}"))
                assert gateways.completions(key["key"]) == {200}

            confirmed(admin.patch(f"{of_tenant}/spending", json={"mode": "prepaid"}))
            assert gateways.completions(key["key"]) == {429}
            granted = confirmed(admin.post(f"{of_tenant}/credits", json={"kind": "promotional", "amount_nanos": 10**9}))
            assert gateways.completions(key["key"]) == {200}
            confirmed(admin.post(f"{of_tenant}/credits/{granted['id']}/void"))
            assert gateways.completions(key["key"]) == {429}
            confirmed(admin.patch(f"{of_tenant}/spending", json={"mode": "postpaid"}))
            assert gateways.completions(key["key"]) == {200}


def make_revisions_ready(platform: Platform, rounds: int) -> None:
    """A revision that is shown as ready can be called at every gateway."""
    tenant = platform.tenant
    adapter_id = tenant.http.get("/api/v1/adapters/bot").json()["id"]
    with Gateways(platform) as gateways:
        for _ in range(rounds):
            revision, _ = ready_revision(platform.engine, adapter_id, unconfirmed=True)
            path = f"/api/v1/adapters/bot/revisions/{revision}"
            while (shown := tenant.http.get(path).json())["status"] != "ready":
                assert (shown["status"], shown["stage"]) == ("validating", "publishing")
                time.sleep(0.01)
            assert gateways.statuses(tenant.key, f"/v1/models/bot@{revision}") == {200}
            assert tenant.http.get(path).json()["status"] == "ready", "it stays so"


EVERY_KIND = (
    change_keys_limits_aliases_and_status, change_plans_and_tenants, change_limits_of_spending, make_revisions_ready,
)  # fmt: skip


@pytest.mark.timeout(3600)  # 200 rounds on a machine that does other work too
@pytest.mark.parametrize(
    ("kinds", "rounds"),
    [
        pytest.param(EVERY_KIND, 2, id="every kind"),
        *(pytest.param((kind,), 200, id=kind.__name__, marks=pytest.mark.soak) for kind in EVERY_KIND),
    ],
)
def test_a_confirmed_change_is_in_force_at_every_gateway(platform, kinds, rounds, promised_s):
    for kind in kinds:
        revoked_s = kind(platform, rounds)
        assert revoked_s is None or revoked_s < promised_s(2)


@pytest.mark.soak  # `make test` shows it without processes in test_price_cards.py
@pytest.mark.scenario(9)
def test_a_scheduled_version_is_in_force_at_every_gateway_from_its_instant(platform, redis, promised_s):
    """Neither earlier, nor more than two seconds later: by the worker, its loops and the gateways as they run."""
    admin, plan = platform.api.admin, platform.api.plan(limits=AMPLE)
    tenant = platform.api.tenant(plan["name"])
    begins = datetime.now(UTC) + timedelta(seconds=4)
    version = {"limits": LIMITS | AMPLE | {"output_tokens": 99}, "prices": PRICES | {"output_nanos": 1}}
    version["effective_from"] = begins.isoformat()
    admin.post(f"/api/v1/admin/plans/{plan['id']}/versions", json=version).raise_for_status()
    with Gateways(platform) as gateways:
        assert gateways.completions(tenant.key) == {200}
        known = [gateways.output_tokens(tenant.key, BASE)]
        while known[-1] != [99, 99]:
            time.sleep(0.02)  # a gateway answers 200 such requests of a tenant a second
            asked = datetime.now(UTC)
            known.append(gateways.output_tokens(tenant.key, BASE))
            assert asked < begins + timedelta(seconds=promised_s(2)) or known[-1] == [99, 99]
            assert 99 not in known[-1] or datetime.now(UTC) >= begins
        assert set(known[0]) == {LIMITS["output_tokens"]}
        assert gateways.completions(tenant.key) == {200}
    events = wait_until(lambda: (found := usage(redis, tenant)) and len(found) == 4 and found, what="four events")
    (now,) = (each for each in admin.get("/api/v1/admin/plans").json()["data"] if each["id"] == plan["id"])
    assert (plan["version"], now["version"]) == (1, 2)
    expected = [each["price_version_id"] for each in (plan, plan, now, now)]
    assert [event.price_version_id for event in events] == expected


def usage(redis: Redis, tenant: Tenant) -> list[UsageEvent]:
    """The tenant's usage in the stream, in the order of its end."""
    entries = redis.xrange(redis_keys.USAGE_STREAM)
    events = [msgspec.json.decode(fields[b"event"], type=UsageEvent) for _, fields in entries]
    return [event for event in events if event.tenant_id == tenant.id]


def test_without_the_worker_a_revocation_says_that_it_is_not_in_force(waiting_api):
    tenant = waiting_api.tenant()
    key = tenant.http.post("/api/v1/api-keys", json={"name": secrets.token_hex(4)})
    assert (key.status_code, key.json()["acknowledged"]) == (202, False)
    revoked = tenant.http.delete(f"/api/v1/api-keys/{key.json()['id']}")
    assert (revoked.status_code, revoked.json()["acknowledged"]) == (202, False)
    change = tenant.http.get(revoked.json()["poll_url"]).raise_for_status().json()
    assert change == {"acknowledged": False, "gateways": 0}
    suspended = waiting_api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json={"status": "suspended"})
    assert (suspended.status_code, suspended.json()["acknowledged"]) == (202, False)
    assert waiting_api.admin.get(suspended.json()["poll_url"]).json()["acknowledged"] is False


def test_a_replay_for_an_idempotency_key_says_nothing_about_gateways(waiting_api):
    tenant = waiting_api.tenant()
    headers = {"Idempotency-Key": secrets.token_hex(8)}
    first, again = (tenant.http.post("/api/v1/api-keys", json={"name": "x"}, headers=headers) for _ in range(2))
    assert (first.status_code, first.json()["acknowledged"]) == (202, False)
    assert again.status_code == 201
    assert "acknowledged" not in again.json()
