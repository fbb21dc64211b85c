"""The launcher drops privileges; the confined command and what is said of a kernel that lacks a protection."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from core.sandbox import launcher
from core.sandbox.confinement import ChildLimits, child_environment, confined_command, missing_protections

OPTIONAL = ["landlock", "network", *(["own-user"] if os.geteuid() == 0 else [])]
LIMITS = ChildLimits(memory_bytes=1 << 30, cpu_s=None, file_bytes=0, open_files=32)


def run(code: str, *, packages: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = confined_command(
        [sys.executable, "-I", "-B", "-c", code], packages=packages, limits=LIMITS, user_id=65_531
    )
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=child_environment({"ONE": "1"})
    )


def test_a_child_without_a_cpu_limit_keeps_the_other_limits():
    finished = run("import resource as r; print(r.getrlimit(r.RLIMIT_CPU), r.getrlimit(r.RLIMIT_FSIZE))")
    assert finished.stdout.strip() == "(-1, -1) (0, 0)", finished.stderr


def test_a_child_knows_only_the_environment_that_it_was_given():
    assert run("import os; print(sorted(os.environ.keys() - {'LC_CTYPE'}))").stdout.strip() == "['LANG', 'ONE', 'PATH']"


def test_a_child_imports_only_the_packages_that_it_was_given():
    said = run("import core.ids, data_plane", packages=("data_plane",))
    assert said.returncode == 0, said.stderr
    if "landlock" in said.stderr:
        assert "PermissionError" in run("import data_plane.gateway.errors").stderr


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        (b"sandbox: network user own-user landlock-4\n", []),
        (b"sandbox: nothing optional\n", OPTIONAL),
        (b"sandbox: network own-user\n", ["landlock"]),
        (b"Traceback (most recent call last):\n", []),
        (b"", []),
    ],
)
def test_missing_protections_are_those_that_the_launcher_does_not_name(line, missing):
    assert missing_protections(line) == missing


OWN_USER = """
import os, sys
given, output = sys.argv[1:]
print(open(given + "/open").read())
open(output + "/new", "w").write("x")
for path in (given + "/of-root-alone", given + "/open"):
    try:
        open(path, "r+")
    except PermissionError as error:
        print("denied", os.path.basename(path))
assert len(set(os.getresuid() + os.getresgid())) == 1, (os.getresuid(), os.getresgid())
assert os.getuid() != 0 and not os.getgroups()
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0, status
"""
# The kernel may refuse nothing, user namespaces, or every namespace.
REFUSING = {
    "nothing": "",
    "namespaces": "launcher._libc.unshare = lambda flags: -1",
    "user namespaces": "real = launcher._libc.unshare\n"
    "launcher._libc.unshare = lambda flags: -1 if flags & 0x10000000 else real(flags)",
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give its child another user")
@pytest.mark.parametrize("refused", REFUSING)
def test_a_child_of_root_runs_as_its_own_user_if_that_user_can_read_the_code(refused):
    """With the system's Python, because this one may be in root's home. The folders are not in a home either."""
    system = Path("/usr/bin/python3")
    if not system.exists():
        pytest.skip("needs an interpreter that every user can reach, /usr/bin/python3")
    with tempfile.TemporaryDirectory() as folder:
        given, output = Path(folder, "given"), Path(folder, "output")
        for path in (given, output):
            path.mkdir()
            os.chown(path, -1, 65_533)
        Path(folder).chmod(0o755)
        output.chmod(0o770)
        for name, mode in (("open", 0o644), ("of-root-alone", 0o600)):
            (given / name).write_text(name)
            (given / name).chmod(mode)
        spec = {
            "parent": os.getpid(),
            "user_id": 65_533,
            "readable": ["/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/proc", str(given)],
            "writable": [str(output)],
            "limits": {"memory_bytes": 1 << 30, "cpu_s": 10, "file_bytes": 1000, "open_files": 64},
        }
        code = f"import json, sys; sys.path.insert(0, {str(Path(launcher.__file__).parent)!r}); import launcher\n"
        code += f"{REFUSING[refused]}\nlauncher.main(json.loads(sys.argv[1]), sys.argv[2:])"
        command = [str(system.resolve()), "-I", "-c", OWN_USER, str(given), str(output)]
        done = subprocess.run(
            [str(system), "-I", "-S", "-c", code, json.dumps(spec), *command],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "own-user" in done.stderr
        assert done.stdout.split("\n")[:3] == ["open", "denied of-root-alone", "denied open"]
        assert (output / "new").stat().st_uid == 65_533
