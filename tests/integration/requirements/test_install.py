"""``make setup`` in a separate small repository: one package, local wheels, and a mirror of Pythons on loopback. What
machines without a Python, a uv or a torch get is shown in `make soak`: the script seldom changes.
"""

import base64
import hashlib
import http.server
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAMS = ("awk", "cat", "cut", "date", "dirname", "env", "grep", "mktemp", "rm", "sed", "sh", "sha256sum", "uname")
BACKEND = """
import pathlib, zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "tenora-0.1-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as wheel:
        wheel.writestr("tenora.pth", str(pathlib.Path.cwd()))
        wheel.writestr("tenora-0.1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: tenora\\nVersion: 0.1\\n")
        wheel.writestr("tenora-0.1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n")
        wheel.writestr("tenora-0.1.dist-info/RECORD", "")
    return name
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
NO_3_11 = 'case "$*" in *get_interpreter_info*|*3,\\ 11*) exit 1;; esac\n'
NO_VENV = 'case "$*" in *ensurepip*) exit 1;; esac\n'
NO_PIP = 'case "$*" in *ensurepip*|*"import pip"*|*"-m pip"*) exit 1;; esac\n'


def make_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> str:
    """A wheel of ``files``, and the line that pins it by hash."""
    info = f"{name}-{version}.dist-info"
    files |= {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        for path, text in files.items()
    }
    record = "".join(f"{path},sha256={digest},{len(files[path])}\n" for path, digest in digests.items())
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            member = zipfile.ZipInfo(path)
            member.external_attr = (0o100755 if ".data/scripts/" in path else 0o100644) << 16
            archive.writestr(member, text)
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of an HTTP server on loopback that serves ``folder``."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class Checkout:
    """A folder with what ``make setup`` reads, a home, and a PATH of chosen programs."""

    def __init__(self, path: Path) -> None:
        self.path, self.home, self.wheels, self.bin = path / "repo", path / "home", path / "wheels", path / "bin"
        for folder in (self.path / "requirements", self.home, self.wheels, self.bin):
            folder.mkdir(parents=True)
        for name in ("install.sh", "uv.sh", "pip_settings.py", "installer.lock", "runtime.in"):
            shutil.copy(ROOT / "requirements" / name, self.path / "requirements")
        (self.path / "backend.py").write_text(BACKEND)
        (self.path / "pyproject.toml").write_text(PYPROJECT)
        self.lock(make_wheel(self.wheels, "tiny", "1.0", {"tiny.py": ""}))
        for program in PROGRAMS:
            (self.bin / program).symlink_to(shutil.which(program))
        (self.path / ".uv").symlink_to(ROOT / ".uv")

    def lock(self, text: str, flavor: str = "cpu") -> None:
        (self.path / "requirements" / f"{flavor}.lock").write_text(text)

    def add_python(self, name: str, unless: str = "") -> None:
        """Put this Python on the PATH. ``unless``: shell code that makes it fail like an unsuitable Python."""
        (self.bin / name).write_text(f'#!/bin/sh\n{unless}exec {sys._base_executable} "$@"\n')
        (self.bin / name).chmod(0o755)

    def replace(self, old: str, new: str) -> None:
        script = self.path / "requirements/install.sh"
        assert old in script.read_text()
        script.write_text(script.read_text().replace(old, new))

    def setup(self, **settings: str) -> subprocess.CompletedProcess[str]:
        base = {"PATH": str(self.bin), "HOME": str(self.home), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}
        return subprocess.run(
            ["sh", str(self.path / "requirements/install.sh")],
            capture_output=True,
            text=True,
            check=False,
            env={**base, "UV_HTTP_RETRIES": "0", **settings},
        )

    def python(self, program: str) -> str:
        return subprocess.check_output([self.path / ".venv/bin/python", "-c", program], text=True).strip()


@pytest.fixture(scope="module", autouse=True)
def uv() -> Path:
    """The pinned uv, which ``make setup`` leaves in the repository."""
    subprocess.run(["sh", "-euc", ". requirements/uv.sh"], cwd=ROOT, check=True)
    return ROOT / ".uv/bin/uv"


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    return Checkout(tmp_path)


_LEFT_OUT = {"__pycache__", "site-packages", "dist-packages", "test", "idlelib", "ensurepip", "tkinter", "lib2to3"}


def _as_standalone(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what is large, and links out of the archive, such as Debian's to /etc: uv refuses to unpack those."""
    leaves = member.issym() and Path(member.linkname).is_absolute()
    return None if leaves or Path(member.name).name in _LEFT_OUT or member.name.endswith(".a") else member


@pytest.fixture(scope="module")
def mirror(tmp_path_factory) -> str:
    """A copy of python-build-standalone's releases: this Python, packed as theirs are. Returns its address."""
    folder = tmp_path_factory.mktemp("mirror")
    prefix, release = Path(sys.base_prefix), folder / "20240107"
    release.mkdir()
    stdlib = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    with tarfile.open(release / "python.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(os.path.realpath(sys._base_executable), "python/bin/python3.11")
        archive.add(stdlib, f"python/{stdlib.relative_to(prefix)}", filter=_as_standalone)
    digest = hashlib.sha256((release / "python.tar.gz").read_bytes()).hexdigest()
    url = "https://github.com/astral-sh/python-build-standalone/releases/download/20240107/python.tar.gz"
    known = {
        f"cpython-{platform.python_version()}-linux-x86_64-gnu": {
            "name": "cpython", "arch": {"family": "x86_64", "variant": None}, "os": "linux", "libc": "gnu", "major": 3,
            "minor": 11, "patch": sys.version_info.micro, "prerelease": "", "url": url, "sha256": digest,
            "variant": None, "build": "20240107",
        },
    }  # fmt: skip
    (folder / "known.json").write_text(json.dumps(known))
    with served(folder) as address:
        yield address


def test_the_lock_is_installed_once(checkout):
    checkout.add_python("python3.11")
    first = checkout.setup()
    assert first.returncode == 0, first.stderr
    announced, done = first.stdout.splitlines()
    assert announced == "setup: installing the cpu lock (1 packages, about 4 GB) into .venv"
    assert done.startswith("setup: done in ")
    assert first.stderr == ""
    assert checkout.python("import tiny, backend; print(backend.__file__)") == str(checkout.path / "backend.py")
    second = checkout.setup()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")


def test_a_wheel_with_another_hash_is_refused(checkout):
    checkout.add_python("python3.11")
    checkout.lock(f"tiny==1.0 --hash=sha256:{'0' * 64}\n")
    refused = checkout.setup()
    assert refused.returncode != 0
    assert "tiny" in refused.stderr
    assert "done" not in refused.stdout
    assert not (checkout.path / ".venv/.tenora-stamp").exists()


@pytest.mark.soak
def test_torch_for_the_cpu_comes_from_its_own_index_where_no_source_has_it(checkout, tmp_path):
    checkout.add_python("python3.11")
    (tmp_path / "indexes" / "configured").mkdir(parents=True)
    torch = make_wheel(tmp_path / "indexes" / "pytorch" / "torch", "torch", "2.13.0+cpu", {"torch.py": ""})
    checkout.lock((checkout.path / "requirements/cpu.lock").read_text() + torch)
    with served(tmp_path / "indexes") as address:
        checkout.replace("https://download.pytorch.org/whl/cpu", f"{address}/pytorch")
        done = checkout.setup(PIP_NO_INDEX="", PIP_INDEX_URL=f"{address}/configured")
    assert done.returncode == 0, done.stderr
    checkout.python("import tiny, torch")


@pytest.mark.soak
def test_a_missing_source_of_torch_for_the_cpu_is_reported(checkout):
    checkout.add_python("python3.11")
    checkout.lock(f"torch==2.13.0+cpu --hash=sha256:{'0' * 64}\n")
    done = checkout.setup()
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("setup: no source has torch for the CPU; point PIP_FIND_LINKS")


@pytest.mark.soak
def test_torch_for_a_gpu_is_found_behind_torch_for_the_cpu_of_the_same_version(checkout, tmp_path):
    checkout.add_python("python3.11")
    make_wheel(checkout.wheels, "torch", "2.13.0+cpu", {"torch.py": "made_for = 'cpu'"})
    checkout.lock(make_wheel(tmp_path / "index" / "torch", "torch", "2.13.0", {"torch.py": "made_for = 'gpu'"}), "gpu")
    with served(tmp_path / "index") as address:
        done = checkout.setup(TENORA_FLAVOR="gpu", PIP_NO_INDEX="", PIP_INDEX_URL=address)
    assert done.returncode == 0, done.stderr
    assert checkout.python("import torch; print(torch.made_for)") == "gpu"


@pytest.mark.soak
def test_a_missing_torch_for_a_gpu_is_not_sought_among_those_for_the_cpu(checkout):
    checkout.add_python("python3.11")
    make_wheel(checkout.wheels, "torch", "2.13.0+cpu", {"torch.py": ""})
    checkout.lock(f"torch==2.13.0 --hash=sha256:{'0' * 64}\n", "gpu")
    refused = checkout.setup(TENORA_FLAVOR="gpu")
    assert refused.returncode == 1
    assert "there is no version of torch==2.13.0" in refused.stderr
    assert "PIP_FIND_LINKS" not in refused.stderr


@pytest.mark.soak
def test_a_machine_without_python_3_11_downloads_one(checkout, mirror):
    checkout.add_python("python3", NO_3_11)
    known = {"UV_PYTHON_DOWNLOADS_JSON_URL": f"{mirror}/known.json", "UV_PYTHON_INSTALL_MIRROR": mirror}
    done = checkout.setup(**known)
    assert done.returncode == 0, done.stderr
    pythons = checkout.home / ".local/share/uv/python"
    assert f"setup: no Python 3.11 on the PATH; uv downloads one into {pythons}" in done.stdout.splitlines()
    assert done.stderr == ""
    assert checkout.python("import sys, tiny; print(sys.base_prefix)").startswith(str(pythons))
    assert not (checkout.home / ".local/bin").exists()


@pytest.mark.soak
def test_a_python_3_11_that_cannot_be_downloaded_names_the_fix(checkout, mirror):
    checkout.add_python("python3", NO_3_11)
    refused = checkout.setup(
        UV_PYTHON_DOWNLOADS_JSON_URL=f"{mirror}/known.json", UV_PYTHON_INSTALL_MIRROR=f"{mirror}/no"
    )
    assert refused.returncode == 2
    fix = refused.stderr.splitlines()[-1]
    assert all(
        word in fix for word in ("apt install python3", "PYTHON=/path/to/python3.11", "UV_PYTHON_INSTALL_MIRROR")
    )
    assert not (checkout.path / ".venv").exists()


def test_a_requested_python_other_than_3_11_is_refused(checkout):
    checkout.add_python("python3", NO_3_11)
    refused = checkout.setup(PYTHON="python3")
    assert (refused.returncode, refused.stderr) == (2, "setup: PYTHON is 'python3', which is not a Python 3.11\n")


@pytest.fixture
def unprepared(checkout, uv) -> Checkout:
    """A checkout that has no uv yet. The wheel that its lock pins holds a script that starts ours."""
    (checkout.path / ".uv").unlink()
    version = subprocess.check_output([uv, "--version"], text=True).split()[1]
    script = {f"uv-{version}.data/scripts/uv": f'#!/bin/sh\nexec {uv} "$@"\n'}
    (checkout.path / "requirements/installer.lock").write_text(make_wheel(checkout.wheels, "uv", version, script))
    return checkout


@pytest.mark.soak
def test_uv_is_installed_by_a_python_that_has_pip_and_no_venv(unprepared):
    unprepared.add_python("python3.11", NO_VENV)
    done = unprepared.setup(PIP_USER="1", PIP_REQUIRE_VIRTUALENV="1")
    assert done.returncode == 0, done.stderr
    assert not (unprepared.path / ".uv/bin/python").exists()


@pytest.mark.soak
def test_another_wheel_of_uv_than_the_pinned_one_is_refused(unprepared):
    unprepared.add_python("python3.11", NO_VENV)
    lock = unprepared.path / "requirements/installer.lock"
    lock.write_text(f"{lock.read_text().split('sha256:')[0]}sha256:{'0' * 64}\n")
    refused = unprepared.setup()
    assert refused.returncode == 2
    assert "PIP_INDEX_URL or PIP_FIND_LINKS" in refused.stderr.splitlines()[-1]


def test_a_python_with_neither_venv_nor_pip_names_the_fix(unprepared):
    unprepared.add_python("python3.11", NO_PIP)
    refused = unprepared.setup()
    assert refused.returncode == 2
    assert "apt install python3-venv" in refused.stderr.splitlines()[-1]


@pytest.mark.soak
def test_a_uv_on_the_path_is_used_if_none_can_be_installed(unprepared, uv):
    unprepared.add_python("python3.11", NO_PIP)
    (unprepared.bin / "uv").symlink_to(uv)
    done = unprepared.setup()
    assert done.returncode == 0, done.stderr
    assert "from the PATH" in done.stdout
