"""The calls of docs/how-to/administer.md, sent as they stand there."""

from tests.fixtures import how_to
from tests.fixtures.control_plane.registry_rows import beat


def test_every_call_of_the_page_does_what_it_says(api, redis):
    tenant = api.tenant()
    kept, replica = beat(redis, "tiny"), beat(redis, "tiny")
    variables = {
        "TENORA_CONTROL_URL": api.url, "TENORA_ADMIN_KEY": api.admin_secret, "TENORA_API_KEY": tenant.key,
        "TENANT": tenant.id, "REPLICA": replica.id,
    }  # fmt: skip
    answers = {command: how_to.send(command, variables) for command in how_to.commands("administer.md")}
    assert len(answers) == 17
    refused = {command: answer for command, answer in answers.items() if answer.status not in (200, 202)}
    assert refused == {}
    found = {command.split("/api/v1/")[1].split('"')[0]: answer.body for command, answer in answers.items()}
    for page in ("admin/tenants?search=acme", "admin/tenants?sort=cost&limit=10"):
        assert [each["id"] for each in found[page]["data"]] == [tenant.id]
    assert [key["id"] for key in found["admin/tenants/$TENANT/api-keys"]["data"]] == [tenant.key_id]
    assert found["admin/tenants/$TENANT"]["limits"]["requests_per_minute"] == 6000
    assert {row["actor"] for row in found["audit-events?limit=20"]["data"]} == {"admin"}
    drained = {each["id"]: each["drain_requested"] for each in found["admin/replicas"]["data"]}
    assert drained == {kept.id: False, replica.id: True}
