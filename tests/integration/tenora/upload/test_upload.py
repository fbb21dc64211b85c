"""`tenora upload` against the real control plane, its worker and S3."""

import json

import pytest
from click.testing import CliRunner

from adapters.object_store.multipart import MIB
from adapters.settings import PART_BYTES_MIN
from core.settings import RedisSettings
from tenora.cli import main
from tenora.client import Tenora
from tenora.upload.client import Uploader, UploadProgress, read_folder
from tenora.upload.transport import parts_of, send
from tests.conftest import running_valkey
from tests.fixtures.control_plane.api import running_api
from tests.fixtures.control_plane.worker import running_worker
from tests.fixtures.uploads.large_uploads import settings_in_parts
from tests.fixtures.uploads.peft_adapters import ALL_KINDS, tiny_base, write_adapter

BASE = tiny_base(hidden=512, kv=256, intermediate=1024, layers=3)


@pytest.fixture
def settings(postgres_settings, redis_settings, s3_settings):
    return settings_in_parts(postgres_settings, redis_settings, s3_settings)


@pytest.fixture
def api(settings):
    with running_api(settings) as running:
        running.register(BASE).raise_for_status()
        yield running


@pytest.fixture
def tenant(api):
    return api.tenant(adapter_bytes=50 * MIB, adapter_rank=64)


@pytest.fixture(scope="module")
def judging(module_postgres_settings, s3_settings, tmp_path_factory):
    """An API whose uploads a worker validates, for tests with their own tenants. No other test empties its Valkey:
    nothing is acknowledged for a minute after a Redis has lost its data.
    """
    with running_valkey(tmp_path_factory.mktemp("judging")) as redis_url:
        settings = settings_in_parts(module_postgres_settings, RedisSettings(redis_url=redis_url), s3_settings)
        with running_api(settings) as running, running_worker(settings):
            running.register(BASE).raise_for_status()
            yield running


@pytest.fixture
def judged(judging):
    return judging.tenant(adapter_bytes=50 * MIB, adapter_rank=64)


@pytest.fixture
def folder(tmp_path):
    """A Trainer's output folder: an adapter of more than one part, and other files."""
    folder = write_adapter(tmp_path / "out", BASE, rank=64, modules=ALL_KINDS)
    (folder / "README.md").write_text("# mine")
    (folder / "optimizer.pt").write_bytes(b"\x80\x04")
    (folder / "checkpoint-10").mkdir()
    return folder


@pytest.fixture
def small(tmp_path):
    """An adapter of one part."""
    return write_adapter(tmp_path / "small", BASE, rank=8)


def tenora_upload(api, tenant, folder, *options: str, key: str | None = None):
    arguments = ["upload", str(folder), "--adapter", "bot", "--control-url", api.url, *options]
    return CliRunner().invoke(main, arguments, env={"TENORA_API_KEY": key or tenant.key, "COLUMNS": "200"})


def document(done) -> dict:
    """What --json printed, among the log lines of this process's API."""
    return json.JSONDecoder().raw_decode(done.stdout, done.stdout.index("{\n"))[0]


def test_a_folder_as_training_left_it_becomes_ready_and_the_same_again_sends_nothing(judging, judged, folder):
    first, again = (tenora_upload(judging, judged, folder) for _ in range(2))
    for done in (first, again):
        assert done.exit_code == 0, done.output
        assert "not uploaded (not part of an adapter): README.md, checkpoint-10, optimizer.pt" in done.output
    (revision,) = judged.http.get("/api/v1/adapters/bot/revisions").json()["data"]
    assert f'is ready: call it as model="bot@{revision["id"]}"' in again.output
    assert (folder / "adapter_model.safetensors").stat().st_size > PART_BYTES_MIN


def test_the_same_folder_goes_to_the_adapter_that_has_the_name_now(judging, judged, small):
    assert tenora_upload(judging, judged, small).exit_code == 0
    judged.http.delete("/api/v1/adapters/bot").raise_for_status()
    done = tenora_upload(judging, judged, small)
    assert done.exit_code == 0, done.output
    (revision,) = judged.http.get("/api/v1/adapters/bot/revisions").json()["data"]
    assert f'is ready: call it as model="bot@{revision["id"]}"' in done.output


def test_an_upload_says_what_the_name_and_each_alias_serve_and_promote_moves_it(judging, judged, small, tmp_path):
    done = tenora_upload(judging, judged, small)
    assert '\nmodel="bot" serves it too\n' in done.output
    (first,) = judged.http.get("/api/v1/adapters/bot/revisions").json()["data"]
    judged.http.put("/api/v1/adapters/bot/aliases/canary", json={"revision": first["id"]}).raise_for_status()
    second_folder = write_adapter(tmp_path / "second", BASE, rank=8, seed=2)
    done = tenora_upload(judging, judged, second_folder)
    assert f'\nmodel="bot" still serves {first["id"]}; to move it: repeat this command with --promote' in done.output
    assert f'\nmodel="bot:canary" still serves {first["id"]}; to move it: tenora adapters promote bot ' in done.output
    assert "serves it too" not in done.output
    done = tenora_upload(judging, judged, second_folder, "--promote")
    assert '\nmodel="bot" serves it too\n' in done.output
    second, _ = judged.http.get("/api/v1/adapters/bot/revisions").json()["data"]
    assert judged.http.get("/api/v1/adapters/bot").json()["serves"] == second["id"] != first["id"]


def test_adapters_are_listed_with_whole_ids_on_a_narrow_terminal(judging, judged, small):
    assert tenora_upload(judging, judged, small).exit_code == 0
    (revision,) = judged.http.get("/api/v1/adapters/bot/revisions").json()["data"]
    environment = {"TENORA_API_KEY": judged.key, "COLUMNS": "40"}
    listed = CliRunner().invoke(main, ["adapters", "--control-url", judging.url, "list"], env=environment)
    rows = [line.split() for line in listed.output.splitlines()]  # this process's API logs to it, too
    assert ["bot", BASE.id, revision["id"], revision["id"]] in rows
    (shown, absent, other) = (
        CliRunner().invoke(main, ["adapters", "--control-url", judging.url, "show", name, "--json"], env=environment)
        for name in ("bot", "absent", "bot#2")
    )
    assert [each["id"] for each in document(shown)["revisions"]] == [revision["id"]]
    error = document(absent)["error"]
    assert (absent.exit_code, error["status"], error["request_id"][:4]) == (1, 404, "req_")
    assert document(other)["error"]["status"] == 404
    asked = CliRunner().invoke(
        main, ["adapters", "delete", "bot"], env={"TENORA_API_KEY": "", "XDG_CONFIG_HOME": "/nowhere"}, input="y\n"
    )
    assert (asked.exit_code, "no API key" in asked.output, "Delete bot" in asked.output) == (1, True, False)


def test_only_what_is_missing_is_sent_again(api, tenant, folder):
    sizes, sent = [], []
    with Tenora(api.url, tenant.key) as client:
        uploader = Uploader(client, UploadProgress(sending=sizes.append, sent=sent.append))
        uploader.ensure_adapter("bot", wanted=None, named=BASE.id)
        found = read_folder(folder)
        parts = parts_of(folder, uploader._announce(found, "bot")["uploads"])
        send(parts[:2], lambda _: None)
        revision = tenant.http.get("/api/v1/adapters/bot/revisions").json()["data"][0]
        uploader._send(found, f"/api/v1/adapters/bot/revisions/{revision['id']}")
    assert sizes == [sum(part.size_bytes for part in parts[2:])] == [sum(sent)]


def test_a_rejected_adapter_shows_its_report_and_can_be_tried_again(judging, judged, tmp_path):
    folder = write_adapter(tmp_path / "bad", BASE, use_dora=True)
    first, again = (tenora_upload(judging, judged, folder) for _ in range(2))
    for refused in (first, again):
        assert refused.exit_code == 1
        assert "is rejected" in refused.output
        assert "adapter_type_not_supported" in refused.output
        assert "adapter_config.json" in refused.output
    environment = {"TENORA_API_KEY": judged.key, "COLUMNS": "200"}
    show, listed = (
        CliRunner().invoke(main, ["adapters", "--control-url", judging.url, *words], env=environment).output
        for words in (["show", "bot"], ["list"])
    )
    assert "no adapters yet" in listed
    assert show.count("use_dora is true; only plain LoRA is served") == 2
    assert "(adapter_type_not_supported)" in show
    assert len(judged.http.get("/api/v1/adapters/bot/revisions").json()["data"]) == 2


def test_an_error_names_the_problem_and_the_fix(api, tenant, folder, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "adapter_config.json").write_text('{"base_model_name_or_path": "nobody/nothing"}')
    (bare / "adapter_model.bin").write_bytes(b"x")
    no_weights = tenora_upload(api, tenant, bare)
    assert (no_weights.exit_code, "safe_serialization=True" in no_weights.output) == (1, True)
    (bare / "adapter_model.safetensors").write_bytes(b"x")
    no_base = tenora_upload(api, tenant, bare)
    assert (no_base.exit_code, "base_model_not_found" in no_base.output) == (1, True)
    bad_key = tenora_upload(api, tenant, folder, key="tnr_live_nonsense")
    assert (bad_key.exit_code, "invalid_api_key" in bad_key.output) == (1, True)
    small = api.tenant(adapter_bytes=1000)
    too_large = tenora_upload(api, small, folder)
    assert (too_large.exit_code, "upload_too_large" in too_large.output) == (1, True)
    assert small.http.get("/api/v1/adapters/bot").status_code == 404, "it was created for this upload alone"
    outside = tenora_upload(api, tenant, folder.parent)
    assert (outside.exit_code, "out has an adapter: upload that folder" in outside.output) == (1, True)
    for refused in (no_weights, no_base, bad_key, too_large):
        assert "Traceback" not in refused.output
