"""Groups of models through the API: who may have which members, and what gateways get."""

import pytest
from sqlmodel import select

from control_plane.groups import service
from control_plane.publishing.models import OutboxChange
from core.contracts.routes import GroupMember, GroupRoute
from core.db import unit_of_work

OWN, ADMIN = "/api/v1/model-groups", "/api/v1/admin/model-groups"


@pytest.fixture
def tenant(api, base):
    made = api.tenant()
    made.adapter("bot", base)
    return made


def body(*members: str, rule: str = "weighted", **changes) -> dict:
    return {"name": "auto", "rule": rule, "members": [{"model": model} for model in members], **changes}


def published(engine) -> dict[str, GroupRoute]:
    with unit_of_work(engine) as session:
        return dict(service.all_routes(session))


def test_a_group_is_created_changed_and_deleted_and_each_is_published(api, engine, base, tenant):
    made = tenant.http.post(OWN, json=body("bot", base.id, rule="classified", threshold_percent=70))
    assert made.status_code == 201, made.text
    shown = made.json()
    assert (shown["name"], shown["rule"], shown["threshold_percent"]) == ("auto", "classified", 70)
    assert [each["model"] for each in shown["members"]] == ["bot", base.id]
    (route,) = published(engine).values()
    assert published(engine).keys() == {f"{tenant.id}/auto"}
    assert route.members == (GroupMember(model="bot"), GroupMember(model=base.id))
    members = [{"model": "bot", "weight": 9}, {"model": base.id}]
    changed = tenant.http.patch(f"{OWN}/auto", json={"rule": "weighted", "members": members}).raise_for_status().json()
    assert (changed["rule"], changed["members"][0]["weight"], changed["threshold_percent"]) == ("weighted", 9, 70)
    assert tenant.http.get(f"{OWN}/auto").json()["members"] == changed["members"]
    assert [each["name"] for each in tenant.http.get(OWN).json()["data"]] == ["auto"]
    tenant.http.delete(f"{OWN}/auto").raise_for_status()
    assert published(engine) == {}
    assert tenant.http.get(f"{OWN}/auto").json()["code"] == "group_not_found"
    with unit_of_work(engine) as session:
        changes = session.exec(select(OutboxChange.field).where(OutboxChange.kind == "groups")).all()
    assert changes == [f"{tenant.id}/auto"] * 3


@pytest.mark.parametrize(
    ("members", "rule", "status", "code", "param"),
    [
        (["none"], "weighted", 404, "member_not_found", "members[0].model"),
        (["bot", "theirs"], "weighted", 404, "member_not_found", "members[1].model"),
        (["bot", "bot"], "weighted", 400, "invalid_group", "members[1].model"),
        (["auto"], "weighted", 400, "member_is_a_group", "members[0].model"),
        (["shared"], "weighted", 400, "member_is_a_group", "members[0].model"),
        (["bot"], "classified", 400, "invalid_group", "members"),
    ],
    ids=["unknown", "another tenant's", "twice", "itself", "a platform's group", "one member"],
)
def test_a_wrong_member_is_refused_by_its_field_with_the_fix(api, base, tenant, members, rule, status, code, param):
    api.tenant().adapter("theirs", base)
    api.admin.post(ADMIN, json=body(base.id, name="shared")).raise_for_status()
    refused = tenant.http.post(OWN, json=body(*members, rule=rule))
    assert (refused.status_code, refused.json()["code"], refused.json()["param"]) == (status, code, param)
    assert refused.json()["detail"].startswith(f"{param}: ")
    assert tenant.http.get(OWN).json()["data"] == []


def test_another_tenants_adapter_is_refused_as_one_that_does_not_exist(api, base, tenant):
    api.tenant().adapter("theirs", base)
    texts = [tenant.http.post(OWN, json=body(name)).json()["detail"] for name in ("theirs", "absent")]
    assert texts[0].replace("theirs", "absent") == texts[1]


@pytest.mark.parametrize("name", ["auto", "bot", "tiny-instruct"], ids=["group", "adapter", "base model"])
def test_a_name_that_is_taken_is_refused(base, tenant, name):
    tenant.http.post(OWN, json=body(base.id)).raise_for_status()
    refused = tenant.http.post(OWN, json=body(base.id, name=name))
    assert (refused.status_code, refused.json()["code"], refused.json()["param"]) == (409, "group_exists", "name")


def test_the_platforms_groups_have_base_models_alone_and_belong_to_admins(api, engine, base, tenant):
    refused = api.admin.post(ADMIN, json=body("bot"))
    assert (refused.status_code, refused.json()["code"]) == (404, "member_not_found")
    api.admin.post(ADMIN, json=body(base.id)).raise_for_status()
    assert published(engine).keys() == {"/auto"}
    assert tenant.http.get(OWN).json()["data"] == []
    assert tenant.http.delete(f"{OWN}/auto").status_code == 404
    tenant.http.post(OWN, json=body("bot")).raise_for_status()
    assert published(engine).keys() == {"/auto", f"{tenant.id}/auto"}
    api.admin.patch(f"{ADMIN}/auto", json={"patience_ms": 100}).raise_for_status()
    assert [each["patience_ms"] for each in api.admin.get(ADMIN).json()["data"]] == [100]
    api.admin.delete(f"{ADMIN}/auto").raise_for_status()
    assert published(engine).keys() == {f"{tenant.id}/auto"}
