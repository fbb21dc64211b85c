"""`tenora pools` against the real control plane."""

import json

import pytest
from click.testing import CliRunner

from tenora.cli import main
from tests.fixtures.uploads.peft_adapters import tiny_base

WEIGHTS = "a" * 64


@pytest.fixture(scope="module", autouse=True)
def base(api):
    api.register(tiny_base()).raise_for_status()


@pytest.fixture
def run(api, tmp_path, monkeypatch):
    monkeypatch.setenv("TENORA_HOME", str(tmp_path / "nothing-runs-here"))

    def call(*arguments: object):
        access = ("--control-url", api.url, "--key", api.admin_secret)
        return CliRunner().invoke(main, ["pools", *access, *map(str, arguments)])

    return call


def test_a_pool_is_made_revised_used_and_gives_its_replicas_their_variables(run):
    assert "chat  " not in run("list").output
    made = run("create", "chat", "--base-model", tiny_base().id, "--replicas", "1-3", "--hardware", "H100")
    assert f"chat  {tiny_base().id}  rank 16  1-3 replicas  revision None" in made.output, made.output
    changed = run("change", "chat", "--replicas", "0-4", "--ttft-ms", 2000, "--itl-ms", 0)
    assert "0-4 replicas" in changed.output, changed.output
    first = run("revise", "chat", "--weights", WEIGHTS, "--engine", "vllm 0.32.0 gpu", "--set", "engine_slots=16")
    assert "vllm 0.32.0 gpu" in first.output, first.output
    assert run("revise", "chat", "--set", "engine_dtype=float32").exit_code == 0
    assert "revision 1  0 wanted  no live replicas" in run("use", "chat", 1).output
    printed = run("env", "chat").output
    for line in ("TENORA_POOL=chat", f"TENORA_MODEL_DIGEST={WEIGHTS}", "TENORA_ENGINE_SLOTS=16"):
        assert f"{line}\n" in printed
    assert "TENORA_ENGINE_DTYPE=float32\n" in run("env", "chat", "--revision", 2).output
    numbers = [line.split()[0] for line in run("revisions", "chat").output.splitlines() if WEIGHTS not in line]
    assert numbers[-2:] == ["2", "1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "x", "--base-model", "none"), "there is no base model"),
        (("create", "x", "--base-model", "tiny", "--replicas", "3"), "write two numbers, such as 1-3"),
        (("change", "chat"), "give what to change"),
        (("change", "absent", "--ttft-ms", 900), "There is no pool"),
        (("revise", "absent", "--set", "engine_slots"), "such as engine_slots=16"),
        (("env", "absent"), "There is no pool"),
    ],
)
def test_a_wrong_argument_is_named_with_the_fix(run, arguments, said):
    refused = run(*arguments)
    assert (refused.exit_code != 0, said in refused.output) == (True, True), refused.output


def test_json_is_one_document(run):
    listed = run("list", "--json").stdout
    assert json.loads(listed[listed.index("{\n") :])["data"] is not None
