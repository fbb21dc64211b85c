"""Pinned adapters: up to the plan's limit, for the revisions that their names serve, and only while they may be
served.
"""

import msgspec
import pytest
import sqlalchemy as sa

from control_plane import worker
from control_plane.registry.adapters.pins import correct_history
from core import db, redis_keys
from core.contracts.routes import Pin
from tests.fixtures.control_plane.api import LIMITS
from tests.fixtures.control_plane.registry_rows import add_revision


def charged(engine) -> set[str]:
    """The engine names that tenants pay for now, by the history that billing reads."""
    with engine.connect() as connection:
        return set(connection.scalars(sa.text("SELECT engine_name FROM pinned_slots WHERE ends IS NULL")))


@pytest.fixture
def pinned(redis, relay, engine):
    """The published engine names that replicas must keep, after all committed changes are published."""

    def read() -> set[str]:
        while relay.run_once():
            pass
        values = redis.hgetall(redis_keys.snapshot("pins"))
        assert all(msgspec.json.decode(value, type=Pin).engine_name == key.decode() for key, value in values.items())
        found = {field.decode() for field in values}
        assert charged(engine) == found, "tenants pay for what is published"
        return found

    return read


def pin(tenant, name: str, *, pinned: bool = True):
    return tenant.http.patch(f"/api/v1/adapters/{name}", json={"pinned": pinned})


def test_the_revisions_that_a_pinned_name_serves_are_kept_in_memory(api, base, engine, pinned, relay, redis):
    tenant = api.tenant(pinned_adapters=1)
    tenant.adapter("bot", base)
    old, new = (add_revision(engine, tenant, "bot") for _ in range(2))
    assert pinned() == set()
    answer = pin(tenant, "bot")
    assert (answer.status_code, answer.json()["pinned"], answer.json()["rank_class"]) == (200, True, 16)
    assert pinned() == {new["engine_name"]}
    value = msgspec.json.decode(redis.hget(redis_keys.snapshot("pins"), new["engine_name"]), type=Pin)
    assert (value.tenant_id, value.base_model, value.rank_class) == (tenant.id, base.id, 16)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO aliases VALUES (%s, 'prod', %s, %s::jsonb, now())",
            (old["adapter_id"], tenant.id, f'{{"{old["id"]}": 1}}'),
        )
    relay.rebuild("test")
    with db.unit_of_work(engine) as session:  # the row above was inserted behind the code's back
        assert (correct_history(session), correct_history(session)) == (1, 0)
    assert pinned() == {old["engine_name"]}
    pin(tenant, "bot", pinned=False).raise_for_status()
    assert pinned() == set()


def test_the_plan_bounds_how_many_are_pinned(api, base, engine, pinned):
    tenant = api.tenant(pinned_adapters=1)
    names = [tenant.adapter(name, base)["name"] for name in ("one", "two")]
    revisions = [add_revision(engine, tenant, name) for name in names]
    for _ in range(2):
        assert pin(tenant, "one").status_code == 200
    refused = pin(tenant, "two")
    assert (refused.status_code, refused.json()["code"], refused.json()["param"]) == (
        403,
        "pin_quota_exceeded",
        "pinned",
    )
    assert "keeps 1" in refused.json()["detail"]
    limits = f"/api/v1/admin/tenants/{tenant.id}"
    api.admin.patch(limits, json={"limits": {"pinned_adapters": 2}}).raise_for_status()
    assert pin(tenant, "two").status_code == 200
    assert pinned() == {each["engine_name"] for each in revisions}
    api.admin.patch(limits, json={"limits": {"pinned_adapters": None}}).raise_for_status()
    assert pinned() == {revisions[0]["engine_name"]}, "a plan that shrinks keeps the first"
    plan = api.admin.get(limits).json()["plan_id"]
    prices = {"input_nanos": 1, "cached_input_nanos": 1, "output_nanos": 1, "kv_page_second_nanos": 1}
    api.admin.post(f"/api/v1/admin/plans/{plan}/versions", json={"limits": LIMITS, "prices": prices}).raise_for_status()
    assert pinned() == set(), "a new version of the plan includes none"


@pytest.mark.parametrize("how", ["unpin", "delete"])
def test_an_adapter_that_leaves_makes_room_for_one_above_a_smaller_plans_limit(api, base, engine, pinned, how):
    tenant = api.tenant(pinned_adapters=2)
    for name in ("one", "two"):
        tenant.adapter(name, base)
    first, second = (add_revision(engine, tenant, name) for name in ("one", "two"))
    for name in ("one", "two"):
        pin(tenant, name).raise_for_status()
    limits = {"limits": {"pinned_adapters": 1}}
    api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json=limits).raise_for_status()
    assert pinned() == {first["engine_name"]}
    if how == "unpin":
        pin(tenant, "one", pinned=False).raise_for_status()
    else:
        tenant.http.delete("/api/v1/adapters/one").raise_for_status()
    assert pinned() == {second["engine_name"]}


def test_a_pin_follows_its_revision_to_another_rank_class(api, base, engine, pinned, redis):
    tenant = api.tenant(pinned_adapters=1)
    tenant.adapter("bot", base)
    name = add_revision(engine, tenant, "bot", rank=4)["engine_name"]
    pin(tenant, "bot").raise_for_status()
    assert pinned() == {name}
    api.register(msgspec.structs.replace(base, rank_max=16, rank_classes=(8, 16))).raise_for_status()
    assert pinned() == {name}
    assert msgspec.json.decode(redis.hget(redis_keys.snapshot("pins"), name), type=Pin).rank_class == 8


def test_an_adapter_that_may_not_be_served_is_not_pinned(api, base, engine, pinned):
    tenant = api.tenant(pinned_adapters=2)
    for name in ("one", "two"):
        tenant.adapter(name, base)
        add_revision(engine, tenant, name)
        pin(tenant, name).raise_for_status()
    assert len(pinned()) == 2
    tenant.http.delete("/api/v1/adapters/two").raise_for_status()
    kept = pinned()
    assert len(kept) == 1
    path = f"/api/v1/admin/tenants/{tenant.id}"
    api.admin.patch(path, json={"status": "suspended"}).raise_for_status()
    assert pinned() == set()
    api.admin.patch(path, json={"status": "active"}).raise_for_status()
    assert pinned() == kept


def test_the_history_of_pins_is_kept_to_the_instant_and_never_changes(api, base, engine, pinned):
    tenant = api.tenant(pinned_adapters=1)
    tenant.adapter("bot", base)
    name = add_revision(engine, tenant, "bot", rank=4)["engine_name"]
    for state in (True, False, True):
        pin(tenant, "bot", pinned=state).raise_for_status()
    api.register(msgspec.structs.replace(base, rank_max=16, rank_classes=(8, 16))).raise_for_status()
    with engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT * FROM pinned_slots ORDER BY begins")).mappings().all()
        with pytest.raises(sa.exc.DBAPIError, match="refused"):
            connection.execute(sa.text("UPDATE pin_events SET at = now()"))
    assert [(row["engine_name"], row["tenant_id"], row["rank_class"]) for row in rows] == [
        (name, tenant.id, 16), (name, tenant.id, 16), (name, tenant.id, 8)
    ]  # fmt: skip
    first, second, third = rows
    assert first["begins"] < first["ends"] < second["begins"]
    assert (second["ends"], third["ends"]) == (third["begins"], None)


def test_two_changes_that_do_not_see_each_other_are_corrected(api, base, engine, pinned):
    tenant = api.tenant(pinned_adapters=1)
    tenant.adapter("bot", base)
    name = add_revision(engine, tenant, "bot")["engine_name"]
    pin(tenant, "bot").raise_for_status()
    newer = add_revision(engine, tenant, "bot")["engine_name"]  # as if it had become ready while the pin was set
    assert charged(engine) == {name}
    worker._correct_pin_history(engine)
    assert pinned() == {newer}
