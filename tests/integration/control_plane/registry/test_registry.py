"""Base models, adapters and announced revisions, with the refusals that happen before any file is sent."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta

import httpx
import msgspec
import pytest

from tests.fixtures.control_plane.api import running_api
from tests.fixtures.control_plane.ready_revisions import ready_revision
from tests.fixtures.uploads.peft_adapters import declared_files, tiny_base, write_adapter

SHA = "0" * 64
CONFIG = {"path": "adapter_config.json", "size_bytes": 500, "sha256": SHA}
WEIGHTS = {"path": "adapter_model.safetensors", "size_bytes": 5000, "sha256": SHA}


def test_registering_the_same_base_model_changes_nothing_and_a_different_one_is_refused(api):
    spec = tiny_base()
    assert [api.register(spec).status_code for _ in range(2)] == [201, 201]
    other = api.register(msgspec.structs.replace(spec, vocab_size=99))
    assert (other.status_code, other.json()["code"]) == (409, "base_model_exists")
    other_template = api.register(msgspec.structs.replace(spec, chat_template=spec.chat_template + "{# #}"))
    assert other_template.status_code == 201, "adapters do not depend on it"
    renamed = api.register(msgspec.structs.replace(spec, id="another"))
    assert (renamed.status_code, renamed.json()["param"]) == (409, "hub_name")
    listed = api.admin.get("/api/v1/admin/base-models").json()["data"]
    assert [(each["id"], each["context_tokens"]) for each in listed] == [(spec.id, spec.context_tokens)]


def test_a_base_models_serving_settings_may_change(api):
    spec = tiny_base()
    api.register(spec)
    changed = api.register(msgspec.structs.replace(spec, context_tokens=99, rank_max=8))
    assert (changed.status_code, changed.json()["context_tokens"]) == (201, 99)
    assert [each["context_tokens"] for each in api.admin.get("/api/v1/admin/base-models").json()["data"]] == [99]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"id": "Has Spaces"}, "id"),
        ({"id": "a\0b"}, "id"),
        ({"hub_name": "a/b/c"}, "hub_name"),
        ({"context_tokens": 0}, "context_tokens"),
        ({"vocab_size": 1 << 40}, "vocab_size"),
        ({"modules": {}}, "modules"),
        ({"modules": {"x": (0, 4)}}, "modules[...][0]"),
        ({"tokenizer_json": "not json"}, "tokenizer_json"),
        ({"tokenizer_json": "[]"}, "tokenizer_json"),
    ],
)
def test_a_base_model_with_a_wrong_field_is_refused(shared_api, change, param):
    response = shared_api.register(msgspec.structs.replace(tiny_base(), **change))
    assert (response.status_code, response.json()["param"]) == (400, param), response.text


def test_an_adapter_is_made_for_a_base_model_by_id_or_hub_name(api, base):
    tenant = api.tenant()
    made = tenant.adapter("router", base)
    assert (made["name"], made["base_model"], made["revision"]) == ("router", base.id, None)
    by_hub = tenant.http.post("/api/v1/adapters", json={"name": "voice", "base_model": base.hub_name})
    assert (by_hub.status_code, by_hub.json()["base_model"]) == (201, base.id)
    assert [each["name"] for each in tenant.http.get("/api/v1/adapters").json()["data"]] == ["voice", "router"]
    assert tenant.http.get("/api/v1/adapters/router").json() == made
    for unknown in ("gpt-4", "a\0b", ""):
        refused = tenant.http.post("/api/v1/adapters", json={"name": "x", "base_model": unknown})
        assert (refused.status_code, refused.json()["code"]) == (400, "base_model_not_found")
        assert base.id in refused.json()["detail"]


def test_a_path_on_the_trainers_disk_means_the_base_model_that_it_names_or_the_only_one(api, base):
    tenant = api.tenant()

    def base_of(name: str, path: str) -> str:
        made = tenant.http.post("/api/v1/adapters", json={"name": name, "base_model": path})
        return made.json().get("base_model", made.json().get("code"))

    assert base_of("by-name", f"/home/me/models/{base.id}/") == base.id
    assert base_of("only-one", "./checkpoints/step-100") == base.id
    api.register(tiny_base(id="other", hub_name="org/Other-1B")).raise_for_status()
    assert base_of("hub-name", "C:\\models\\other-1b") == "other"
    assert base_of("unclear", "./checkpoints/step-100") == "base_model_not_found"


def test_a_base_model_has_further_names_that_an_admin_sets(api, base):
    tenant, path = api.tenant(), f"/api/v1/admin/base-models/{base.id}/names"
    api.register(tiny_base(id="other", hub_name="org/Other-1B")).raise_for_status()
    mirror = "unsloth/Tiny-Instruct-bnb-4bit"
    assert api.admin.put(path, json={"names": [mirror, mirror.lower()]}).json()["names"] == [mirror.lower()]
    made = tenant.http.post("/api/v1/adapters", json={"name": "bot", "base_model": mirror.upper()})
    assert made.json()["base_model"] == base.id
    listed = {each["id"]: each["names"] for each in tenant.http.get("/api/v1/base-models").json()["data"]}
    assert listed == {base.id: [mirror.lower()], "other": []}
    for names, code in (
        (["org/other-1b"], "name_taken"), (["a b"], "invalid_value"), (["x"] * 101, "invalid_value"),
    ):  # fmt: skip
        refused = api.admin.put(path, json={"names": names})
        assert (refused.status_code in (400, 409), refused.json()["code"]) == (True, code)
    assert api.admin.put("/api/v1/admin/base-models/absent/names", json={"names": []}).status_code == 404
    assert api.admin.put(path, json={"names": []}).json()["names"] == []


def test_two_tenants_may_use_the_same_name_but_one_only_once(api, base):
    ours, theirs = api.tenant(), api.tenant()
    assert ours.adapter("router", base)["id"] != theirs.adapter("router", base)["id"]
    again = ours.http.post("/api/v1/adapters", json={"name": "router", "base_model": base.id})
    assert (again.status_code, again.json()["code"], again.json()["param"]) == (409, "adapter_exists", "name")


def test_the_plan_bounds_how_many_ready_adapters_there_are_and_a_deleted_one_frees_its_place(api, base, engine):
    tenant = api.tenant(adapters=1)
    tenant.adapter("two", base)
    one = tenant.adapter("one", base)
    assert tenant.http.get("/api/v1/quota").json()["used"]["adapters"] == 0
    ready_revision(engine, one["id"])
    files = {"files": [CONFIG, WEIGHTS]}
    for refused in (
        tenant.http.post("/api/v1/adapters", json={"name": "three", "base_model": base.id}),
        tenant.http.post("/api/v1/adapters/two/revisions", json=files),
    ):
        assert (refused.status_code, refused.json()["code"]) == (403, "adapter_quota_exceeded")
        assert "allows 1" in refused.json()["detail"]
    assert tenant.http.delete("/api/v1/adapters/one").status_code == 202
    assert tenant.http.get("/api/v1/adapters/one").status_code == 404
    assert tenant.http.delete("/api/v1/adapters/one").status_code == 404
    assert tenant.http.get("/api/v1/quota").json()["used"]["adapters"] == 0
    tenant.adapter("one", base)


def test_an_adapter_shows_its_newest_ready_revision_and_the_one_that_its_name_serves(api, base, engine):
    tenant = api.tenant()
    adapter = tenant.adapter("bot", base)
    assert (adapter["newest_ready"], adapter["serves"]) == (None, None)

    def shown() -> tuple[str | None, str | None]:
        found = tenant.http.get("/api/v1/adapters/bot").json()
        return found["newest_ready"], found["serves"]

    first = ready_revision(engine, adapter["id"])[0]
    assert shown() == (first, first)
    tenant.http.put("/api/v1/adapters/bot/aliases/prod", json={"revision": first}).raise_for_status()
    second = ready_revision(engine, adapter["id"])[0]
    assert shown() == (second, first)
    tenant.http.put("/api/v1/adapters/bot/aliases/prod", json={"weights": {first: 1, second: 1}}).raise_for_status()
    assert shown() == (second, None)


def test_an_adapter_whose_revisions_were_all_rejected_is_not_listed_and_its_name_is_free(api, base, engine):
    tenant = api.tenant()
    api.register(tiny_base(id="other", hub_name="org/Other-1B")).raise_for_status()

    def listed() -> list[str]:
        return [each["name"] for each in tenant.http.get("/api/v1/adapters").json()["data"]]

    wrong = tenant.adapter("bot", base)
    assert listed() == ["bot"], "nothing was uploaded yet"
    rejected, _ = ready_revision(engine, wrong["id"], status="rejected")
    assert listed() == []
    assert tenant.http.get("/api/v1/adapters/bot").json()["id"] == wrong["id"]
    assert tenant.http.get(f"/api/v1/adapters/bot/revisions/{rejected}").json()["status"] == "rejected"
    again = tenant.http.post("/api/v1/adapters", json={"name": "bot", "base_model": "other"})
    assert (again.status_code, again.json()["base_model"]) == (201, "other")
    assert listed() == ["bot"]
    ready_revision(engine, again.json()["id"], status="rejected")
    ready_revision(engine, again.json()["id"])
    assert listed() == ["bot"]
    taken = tenant.http.post("/api/v1/adapters", json={"name": "bot", "base_model": base.id})
    assert (taken.status_code, taken.json()["code"]) == (409, "adapter_exists")


def test_a_base_model_cannot_take_the_name_of_an_adapter(api, base):
    api.tenant().adapter("taken", base)
    response = api.register(tiny_base(id="taken", hub_name="a/b"))
    assert (response.status_code, response.json()["code"]) == (409, "name_taken")


def test_an_announcement_is_refused_before_a_byte_is_sent(api, base):
    """Which files are refused is tested beside the rules and, item by item, with the corpus of uploads."""
    tenant = api.tenant()
    tenant.adapter("router", base)
    for files, status, code, param in (
        ([WEIGHTS], 400, "file_missing", "adapter_config.json"),
        ([CONFIG, WEIGHTS | {"size_bytes": 6_000_000}], 413, "upload_too_large", "files"),
        ([CONFIG | {"sha256": "ABC"}, WEIGHTS], 400, "invalid_value", "files[0].sha256"),
        ([CONFIG | {"url": "http://x"}, WEIGHTS], 400, "unknown_field", "files[0].url"),
        ([], 400, "invalid_value", "files"),
        ([CONFIG, WEIGHTS, *({**CONFIG, "path": f"{n}.md"} for n in range(20))], 400, "invalid_value", "files"),
    ):
        response = tenant.http.post("/api/v1/adapters/router/revisions", json={"files": files})
        problem = response.json()
        assert (response.status_code, problem["code"], problem.get("param")) == (status, code, param), response.text
    assert tenant.http.get("/api/v1/adapters/router/revisions").json()["data"] == []


def test_the_number_of_open_uploads_is_bounded(api, base):
    tenant = api.tenant()
    tenant.adapter("router", base)
    for _ in range(api.settings.web.uploads_open_max):
        tenant.announce("router", [CONFIG, WEIGHTS])
    refused = tenant.http.post("/api/v1/adapters/router/revisions", json={"files": [CONFIG, WEIGHTS]})
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_open_uploads")


def test_files_go_to_presigned_urls_and_missing_ones_are_named(api, base, tmp_path):
    tenant = api.tenant()
    tenant.adapter("router", base)
    folder = write_adapter(tmp_path / "a", base)
    revision = tenant.announce("router", declared_files(folder))
    assert (revision["status"], {each["method"] for each in revision["uploads"]}) == ("uploading", {"PUT"})
    path = f"/api/v1/adapters/router/revisions/{revision['id']}"
    for upload in revision["uploads"]:
        missing = tenant.http.post(f"{path}/complete")
        assert (missing.status_code, missing.json()["code"]) == (409, "artifact_missing")
        assert missing.json()["param"] == upload["path"]
        content = (folder / upload["path"]).read_bytes()
        httpx.put(upload["url"], headers=upload["headers"], content=content).raise_for_status()
    assert tenant.http.get(path).json()["status"] == "uploading"
    first, again = (tenant.http.post(f"{path}/complete") for _ in range(2))
    assert (first.status_code, first.json()["status"]) == (202, "validating")
    assert (again.status_code, again.json()) == (202, first.json())
    assert tenant.http.get("/api/v1/adapters/router/revisions").json()["data"] == [first.json()]


def test_an_object_of_another_size_is_not_complete(api, base, uploads, tmp_path):
    tenant = api.tenant()
    tenant.adapter("router", base)
    folder = write_adapter(tmp_path / "a", base)
    revision = tenant.announce("router", declared_files(folder))
    for upload in revision["uploads"]:
        key = f"uploads/{revision['id']}/{upload['path']}"
        other = uploads.presign_put(key, size_bytes=3, sha256=SHA, expires_s=60)
        httpx.request(other.method, other.url, headers=other.headers, content=b"abc").raise_for_status()
    response = tenant.http.post(f"/api/v1/adapters/router/revisions/{revision['id']}/complete")
    assert (response.status_code, response.json()["code"]) == (409, "artifact_size_mismatch")


def test_announcing_again_with_the_same_key_signs_new_urls_and_none_is_stored(api, base, engine):
    tenant = api.tenant()
    tenant.adapter("router", base)
    first, again = (
        tenant.http.post(
            "/api/v1/adapters/router/revisions", json={"files": [CONFIG, WEIGHTS]}, headers={"idempotency-key": "k"}
        )
        for _ in range(2)
    )
    assert (first.status_code, again.status_code, again.headers["idempotent-replayed"]) == (201, 201, "true")
    assert again.json()["id"] == first.json()["id"]
    assert [each["path"] for each in again.json()["uploads"]] == [each["path"] for each in first.json()["uploads"]]
    assert len(tenant.http.get("/api/v1/adapters/router/revisions").json()["data"]) == 1
    with engine.connect() as connection:
        bodies = connection.exec_driver_sql("SELECT body FROM idempotent_responses WHERE key = 'k'").scalars().all()
    assert b"X-Amz-Signature" not in b"".join(bodies)


def announce_again(tenant, files=(CONFIG, WEIGHTS)) -> dict:
    """The first announcement with its Idempotency-Key, or the replay."""
    path, headers = "/api/v1/adapters/router/revisions", {"idempotency-key": "k"}
    return tenant.http.post(path, json={"files": list(files)}, headers=headers).raise_for_status().json()


def grow_older(engine, by: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE revisions SET created_at = created_at - interval '{by}'")


def last_moment(url: str) -> datetime:
    """The expiry of a presigned URL."""
    signed_at, expires_s = (re.search(rf"X-Amz-{name}=(\w+)", url)[1] for name in ("Date", "Expires"))
    return datetime.strptime(signed_at + "+0000", "%Y%m%dT%H%M%SZ%z") + timedelta(seconds=int(expires_s))


def test_no_url_of_a_replay_outlives_the_announcement_by_more_than_its_lifetime(api, base, engine):
    tenant = api.tenant()
    tenant.adapter("router", base)
    lifetime_s = api.settings.upload.upload_url_expires_s
    first = announce_again(tenant)
    path = f"/api/v1/adapters/router/revisions/{first['id']}"
    for older, urls in (("0 s", 2), (f"{lifetime_s - 90} s", 2), ("40 s", 0), ("1 day", 0)):
        grow_older(engine, older)
        again = announce_again(tenant)
        end = datetime.fromisoformat(tenant.http.get(path).json()["created_at"]) + timedelta(seconds=lifetime_s)
        assert (again["id"], again["status"], len(again["uploads"])) == (first["id"], "uploading", urls), older
        assert datetime.fromisoformat(again["uploads_expire_at"]) == end
        for upload in again["uploads"]:
            assert end - timedelta(seconds=5) < last_moment(upload["url"]) <= end


def test_the_replay_of_a_revision_past_uploading_says_so_and_gives_no_url(api, base, engine, tmp_path):
    tenant = api.tenant()
    tenant.adapter("router", base)
    files = declared_files(folder := write_adapter(tmp_path / "a", base))
    first = announce_again(tenant, files)
    for upload in first["uploads"]:
        content = (folder / upload["path"]).read_bytes()
        httpx.put(upload["url"], headers=upload["headers"], content=content).raise_for_status()
    path = f"/api/v1/adapters/router/revisions/{first['id']}"
    tenant.http.post(f"{path}/complete").raise_for_status()
    again = announce_again(tenant, files)
    assert (again["id"], again["status"], again["uploads"]) == (first["id"], "validating", [])
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE revisions SET status = 'rejected'")
    again = announce_again(tenant, files)
    assert (again["status"], again["uploads"]) == ("rejected", [])


def test_the_replay_for_an_adapter_that_is_gone_gives_no_url(api, base):
    tenant = api.tenant()
    tenant.adapter("router", base)
    announce_again(tenant)
    tenant.http.delete("/api/v1/adapters/router").raise_for_status()
    tenant.adapter("router", base)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        announce_again(tenant)
    assert (refused.value.response.status_code, refused.value.response.json()["code"]) == (404, "revision_not_found")


def test_names_without_a_ready_revision_have_a_bound_that_concurrent_creations_keep(settings, base, engine):
    with running_api(replace(settings, web=settings.web.model_copy(update={"adapters_unready_max": 3}))) as api:
        api.register(base)
        tenant = api.tenant()

        def create(number: int) -> int:
            body = {"name": f"a{number}", "base_model": base.id}
            return tenant.http.post("/api/v1/adapters", json=body).status_code

        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(create, range(12))) == [201] * 3 + [403] * 9
        refused = tenant.http.post("/api/v1/adapters", json={"name": "more", "base_model": base.id})
        assert (refused.status_code, refused.json()["code"]) == (403, "adapter_quota_exceeded")
        assert "Delete some" in refused.json()["detail"]
        first = tenant.http.get("/api/v1/adapters").json()["data"][0]
        ready_revision(engine, first["id"], status="rejected")
        tenant.adapter("more", base)
