"""`tenora base-models` against the real control plane."""

import json

import pytest
from click.testing import CliRunner

from adapters.base_weights import read_weights
from tenora.cli import main
from tests.unit.adapters.test_base_model_spec import write_checkpoint


@pytest.fixture
def run(api, tmp_path, monkeypatch):
    monkeypatch.setenv("TENORA_HOME", str(tmp_path / "nothing-runs-here"))

    def call(*arguments: object, url: bool = True):
        access = ("--control-url", api.url, "--key", api.admin_secret) if url else ()
        return CliRunner().invoke(main, ["base-models", *access, *map(str, arguments)])

    return call


def test_a_folder_is_registered_once_and_the_next_step_starts_its_replica(api, run, tmp_path):
    folder = write_checkpoint(tmp_path / "model")
    (folder / "config.json").write_text(
        json.dumps({"max_position_embeddings": 4096, "vocab_size": 259, "_name_or_path": "acme/tiny"})
    )
    for _ in range(2):
        added = run("add", folder, "--id", "tiny-one", "--rank-max", "8")
        assert added.exit_code == 0, added.output
        assert "registered tiny-one (acme/tiny): context 2048, rank up to 8" in added.output
    for setting in ("REPLICA_ID=rep_tiny_one", "BASE_MODEL=tiny-one", f"MODEL_PATH={folder}", "ENGINE_RANK_MAX=8"):
        assert f"TENORA_{setting} " in added.output
    assert "-m data_plane replica" in added.output
    assert "tiny-one  acme/tiny  context 2048" in run("list").output
    other = run("add", folder, "--id", "tiny-one", "--hub-name", "acme/other")
    assert (other.exit_code, "Choose a new id" in other.output) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--id", "Tiny One"), "id: use lower-case letters"),
        (("--id", "t", "--hub-name", "/weights"), "--hub-name: '/weights' is no name on the Hub"),
        (("--id", "t", "--context-tokens", "9999"), "at most 2048"),
        (("--id", "t", "--rank-max", "12"), "--rank-max"),
    ],
)
def test_a_wrong_option_is_named(run, tmp_path, arguments, said):
    refused = run("add", write_checkpoint(tmp_path / "model"), *arguments)
    assert (refused.exit_code != 0, said in refused.output) == (True, True), refused.output


def test_without_a_platform_or_a_key_the_fix_is_named(run, api):
    assert (
        "tenora up --detach, or set TENORA_HOME. For another machine, use --control-url."
        in run("list", url=False).output
    )
    keyless = CliRunner().invoke(main, ["base-models", "--control-url", api.url, "list"], env={"TENORA_ADMIN_KEY": ""})
    assert "set TENORA_ADMIN_KEY" in keyless.output


def test_weights_are_pushed_once_and_printed_by_their_digest(run, s3_settings, tmp_path, monkeypatch):
    monkeypatch.setenv("TENORA_S3_ENDPOINT", s3_settings.s3_endpoint)
    monkeypatch.setenv("TENORA_S3_ACCESS_KEY", s3_settings.s3_access_key)
    monkeypatch.setenv("TENORA_S3_SECRET_KEY", s3_settings.s3_secret_key.get_secret_value())
    folder = write_checkpoint(tmp_path / "model")
    for _ in range(2):
        pushed = run("push", folder, url=False)
        assert pushed.stdout.strip() == read_weights(folder).digest, pushed.output
    (folder / "model.safetensors").unlink()
    refused = run("push", folder, url=False)
    assert (refused.exit_code, "must hold a checkpoint with .safetensors files" in refused.output) == (1, True)
