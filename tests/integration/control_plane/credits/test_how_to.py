"""The commands in docs/how-to/use-credits.md, run as they stand there."""

from tests.fixtures.how_to import commands, send


def test_every_command_of_the_page_is_accepted(shared_api):
    tenant = shared_api.tenant()
    values = {
        "TENORA_CONTROL_URL": shared_api.url, "TENORA_ADMIN_KEY": shared_api.admin_secret, "TENORA_API_KEY": tenant.key,
        "TENANT": tenant.id, "KEY": tenant.key_id, "LOT": "",
    }  # fmt: skip
    found = commands("use-credits.md")
    assert len(found) == 12
    for command in found:
        answer = send(command, values)
        assert answer.status in (200, 201, 202), (command, answer)
        if "priority" in command:
            assert answer.body["status"] == "active"
        elif '"paid"' in command:
            values["LOT"] = answer.body["id"]
    assert tenant.http.get("/api/v1/credits").json()["balance_nanos"] == 10_000_000_000
