"""What a tenant's commands show of a real control plane, for people and as JSON."""

import json

import pytest
import redis as redis_client
from click.testing import CliRunner

from tenora.cli import main
from tests.fixtures.control_plane.ready_revisions import ready_revision
from tests.fixtures.control_plane.usage import UsageRecorder, used
from tests.fixtures.uploads.peft_adapters import tiny_base


@pytest.fixture(scope="module")
def tenant(api, module_engine, redis_server):
    """A tenant with usage of 20 dollars, an invoice over it, and an adapter of two ready revisions."""
    tenant = api.tenant(api.plan(prices={"input_nanos": 10**9})["name"])
    with redis_client.Redis.from_url(redis_server) as redis:
        UsageRecorder(module_engine, redis)(
            used(tenant.id, input_tokens=20, cached_tokens=0, output_tokens=0, kv_page_ms=0)
        )
    api.admin.post("/api/v1/admin/billing/close", json={"until": "now"}).raise_for_status()
    api.register(tiny_base()).raise_for_status()
    adapter_id = tenant.adapter("bot", tiny_base())["id"]
    tenant.ready = [ready_revision(module_engine, adapter_id)[0] for _ in range(2)]
    return tenant


@pytest.fixture
def tenora(api, tenant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    access = {"TENORA_API_KEY": tenant.key, "TENORA_CONTROL_URL": api.url}

    def run(*arguments: str, status: int = 0):
        done = CliRunner().invoke(main, arguments, env=access)
        assert done.exit_code == status, done.output
        return done

    return run


def document(done) -> dict:
    """What --json printed, among the log lines of this process's API."""
    return json.JSONDecoder().raw_decode(done.stdout, done.stdout.index("{\n"))[0]


def test_keys_are_created_listed_and_revoked(api, tenora):
    made = document(tenora("keys", "create", "ci", "--scope", "inference", "--scope", "usage:read", "--json"))
    assert api.client(made["key"]).get("/api/v1/me").json()["scopes"] == ["inference", "usage:read"]
    assert any(
        line.split()[:3] == [made["id"], made["redacted"], "ci"] for line in tenora("keys", "list").output.splitlines()
    )
    new = document(tenora("keys", "rotate", made["id"], "--overlap", "none", "--json"))
    assert [api.client(each["key"]).get("/api/v1/me").status_code for each in (made, new)] == [401, 200]
    assert "gateways refuse it" in tenora("keys", "revoke", made["id"]).output
    assert api.client(new["key"]).get("/api/v1/me").status_code == 401
    bound = document(tenora("keys", "create", "bot", "--model", "bot", "--expires-in-days", "9", "--json"))
    assert (bound["models"], bound["expires_at"] > made["created_at"]) == (["bot"], True)
    assert "tnr_live_" in tenora("keys", "create", "plain").stdout
    tenora("keys", "create", "ci", "--scope", "admin", status=2)
    refused = tenora("keys", "revoke", "key_unknown", "--json", status=1)
    assert document(refused)["error"]["code"] == "api_key_not_found"


def test_usage_is_shown_by_bucket_and_group(tenora):
    lines = tenora("usage", "--bucket", "1d", "--group-by", "base_model").output.splitlines()
    heads = next(line.split() for line in lines if line.startswith("start"))
    row = next(line.split() for line in lines if "tiny-instruct" in line)
    assert dict(zip(heads, row, strict=True)) == {
        "start": row[0], "base_model": "tiny-instruct", "requests": "1", "input_tokens": "20", "cached_tokens": "0",
        "output_tokens": "0", "cost": "$20.0000",
    }  # fmt: skip
    assert document(tenora("usage", "--json"))["data"][0]["amount_nanos"] == 20 * 10**9
    refused = document(tenora("usage", "--start", "yesterday", "--json", status=1))
    assert refused["error"]["param"] == "start"


def test_the_quota_has_a_line_for_each_limit(tenora):
    rows = [line.split() for line in tenora("quota").output.splitlines()]
    assert ["requests_per_minute", "0", "600"] in rows
    assert ["kv_pages", "0", "4096"] in rows


def test_an_invoice_is_listed_shown_and_stored(tenora, tmp_path):
    (invoice,) = document(tenora("invoices", "list", "--json"))["data"]
    assert f"{invoice['id']}  {invoice['number']}" in tenora("invoices", "list").output
    shown = tenora("invoices", "show", invoice["id"]).output
    assert "total: $20.00" in shown
    assert "tiny-instruct" in shown
    assert tenora("invoices", "pdf", invoice["id"]).stdout.endswith(f"{invoice['id']}.pdf\n")
    assert (tmp_path / f"{invoice['id']}.pdf").read_bytes().startswith(b"%PDF")
    tenora("invoices", "pdf", "../outside", status=1)
    assert [each.name for each in tmp_path.iterdir()] == [f"{invoice['id']}.pdf"]


def test_an_adapter_is_promoted_and_rolled_back(tenora, tenant):
    old, new = tenant.ready
    assert f"bot:prod serves {new}" in tenora("adapters", "promote", "bot").output
    assert f"bot:prod serves {old}, before {new}" in tenora("adapters", "rollback", "bot").output
    split = {"weights": {old: 90, new: 10}}
    tenant.http.put("/api/v1/adapters/bot/aliases/prod", json=split).raise_for_status()
    assert document(tenora("adapters", "rollback", "bot", "--json"))["previous"] == split
    first = tenora("adapters", "rollback", "bot", status=1)
    assert f"bot has no ready revision before {old}" in first.output
    assert f"bot:canary serves {new}" in tenora("adapters", "promote", "bot", new, "--alias", "canary").output
    assert "bot has no alias test" in tenora("adapters", "rollback", "bot", "--alias", "test", status=1).output
    tenant.adapter("spare", tiny_base())
    assert "has no ready revision yet" in tenora("adapters", "promote", "spare", status=1).output
    tenora("adapters", "rm", "spare", "--yes")
    assert tenant.http.get("/api/v1/adapters/spare").status_code == 404
