"""The child that reads untrusted files, when the child or its input misbehaves. Every case runs a real process."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import structlog

from adapters.report import Code
from adapters.sandbox import parent
from adapters.sandbox.child import REVISION_FOLDER, UPLOAD_FOLDER, ValidationRequest
from adapters.sandbox.parent import ChildFailed, run_confined, validate_confined
from adapters.settings import UploadSettings
from adapters.validation.bounds import UploadLimits
from adapters.validation.normalize import REVISION_FILES
from tests.fixtures.uploads.peft_adapters import tiny_base, write_adapter

BASE = tiny_base()
OPTIONAL = ("landlock", "network", *(["own-user"] if os.geteuid() == 0 else []))


def run(code: str, *, readable=(), writable=(), **settings) -> str:
    answer = run_confined(
        [sys.executable, "-I", "-c", code],
        readable=readable,
        writable=writable,
        file_bytes=1_000_000,
        settings=UploadSettings(**settings),
    )
    return answer.decode().strip()


def failure(code: str, **settings) -> ChildFailed:
    with pytest.raises(ChildFailed) as failed:
        run(code, **settings)
    return failed.value


def validate_folder(tmp_path, *, settings=None, **options):
    (tmp_path / UPLOAD_FOLDER).mkdir()
    write_adapter(tmp_path / UPLOAD_FOLDER, BASE, **options)
    request = ValidationRequest(
        base=msgspec.structs.replace(BASE, tokenizer_json="", chat_template=""),
        known_bases={BASE.id.casefold(): BASE.id},
        limits=UploadLimits(plan_name="starter", rank_max=64, bytes_max=1_000_000),
        bounds=UploadSettings().bounds(),
    )
    return validate_confined(tmp_path, request, settings or UploadSettings())


def test_a_good_upload_is_reserialized(tmp_path):
    verdict = validate_folder(tmp_path)
    assert verdict.accepted
    assert verdict.digest == verdict.manifest.digest
    assert {path.name for path in (tmp_path / REVISION_FOLDER).iterdir()} == set(REVISION_FILES)


def test_a_bad_upload_gets_a_report_and_writes_nothing(tmp_path):
    verdict = validate_folder(tmp_path, r=128)
    assert [problem.code for problem in verdict.problems] == ["rank_too_large"]
    assert verdict.digest is None
    assert not any((tmp_path / REVISION_FOLDER).iterdir())


def test_a_validation_that_takes_too_long_is_refused_not_accepted(tmp_path):
    verdict = validate_folder(tmp_path, settings=UploadSettings(upload_validation_timeout_s=0.01))
    assert [problem.code for problem in verdict.problems] == ["validation_timeout"]
    assert not verdict.accepted


@pytest.mark.parametrize("starved", [{"upload_open_files_max": 3}, {"upload_memory_bytes_max": 40 << 20}])
def test_a_validation_that_crashes_is_refused_not_accepted(tmp_path, starved):
    verdict = validate_folder(tmp_path, settings=UploadSettings().model_copy(update=starved))
    assert [problem.code for problem in verdict.problems] == ["validation_failed"]
    assert not verdict.accepted


def test_the_child_has_no_privileges_no_secrets_and_bounded_memory(monkeypatch):
    monkeypatch.setenv("TENORA_KEY_PEPPER", "a secret of the worker")
    code = """
import os, resource
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0, status
assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), status
assert set(os.environ) <= {"LANG", "LC_CTYPE", "PATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}, os.environ
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
assert resource.getrlimit(resource.RLIMIT_FSIZE) == (1_000_000, 1_000_000)
print("confined")
"""
    assert run(code, readable=[Path("/proc")]) == "confined"


def test_every_code_of_a_report_is_in_the_rooms_readme():
    readme = (Path(parent.__file__).parents[1] / "README.md").read_text()
    assert [code for code in get_args(Code) if f"`{code}`" not in readme] == []


def test_allocating_four_gigabytes_fails():
    assert "MemoryError" in failure("x = bytearray(4 << 30)").detail


def test_spinning_ends_at_the_processor_limit():
    started = time.monotonic()
    assert failure("while True: pass", upload_cpu_s_max=1).reason == "crashed"
    assert time.monotonic() - started < 10


def test_waiting_ends_at_the_wall_limit_and_leaves_no_process(tmp_path, promised_s):
    started = time.monotonic()
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    assert failure(code, upload_validation_timeout_s=1.5, writable=[tmp_path]).reason == "timeout"
    assert time.monotonic() - started < promised_s(5)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_child_that_closes_its_output_and_keeps_running_times_out():
    assert failure("import os, time; os.close(1); time.sleep(60)", upload_validation_timeout_s=1).reason == "timeout"


def test_endless_output_is_stopped():
    assert failure("while True: print('x' * 1000)", upload_answer_bytes_max=65_536).reason == "too_long"


OUT_OF_REACH = """
import ctypes, os, resource, socket, threading
libc = ctypes.CDLL(None, use_errno=True)

def accepted(call):
    if call != 0:
        raise OSError

for attempt in (
    lambda: socket.socket(),
    lambda: socket.socketpair(),
    lambda: os.fork(),
    lambda: os.posix_spawn("/bin/true", ["true"], {}),
    lambda: threading.Thread(target=print).start(),
    lambda: os.kill(os.getppid(), 0),
    lambda: os.kill(1, 9),
    lambda: os.pidfd_open(1),
    lambda: accepted(libc.unshare(0x10000000)),
    lambda: accepted(libc.ptrace(16, 1, 0, 0)),
    lambda: resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2),
    lambda: os.setuid(0),
):
    try:
        attempt()
    except (OSError, RuntimeError, ValueError):
        print("refused")
    else:
        print("done")
"""


def test_sockets_processes_signals_and_privileges_are_out_of_reach():
    assert run(OUT_OF_REACH).splitlines() == ["refused"] * 12


def test_a_file_above_its_limit_cannot_be_written(tmp_path):
    code = f"open({str(tmp_path / 'x')!r}, 'wb').write(bytes(2_000_000))"
    assert failure(code, writable=[tmp_path]).reason == "crashed"
    assert (tmp_path / "x").stat().st_size <= 1_000_000


def test_a_crash_inside_a_library_is_only_a_failed_child():
    failed = failure("import ctypes; ctypes.string_at(0)")
    assert failed.reason == "crashed"
    assert "-11" in failed.detail


def has_landlock() -> bool:
    return "landlock" in failure("1 / 0").detail


def test_only_the_given_folders_can_be_read_or_written(tmp_path):
    if not has_landlock():
        pytest.skip("this kernel has no Landlock, without which files are protected by their modes alone")
    for name in ("secret", "given", "output"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    given, output = [tmp_path / "given"], [tmp_path / "output"]
    assert run(f"print(open({str(tmp_path / 'given/file')!r}).read())", readable=given) == "given"
    attempts = (
        f"open({str(tmp_path / 'secret/file')!r})",
        f"os.listdir({str(tmp_path)!r})",
        f"open({str(tmp_path / 'given/file')!r}, 'w')",
        f"open({str(tmp_path / 'given/new')!r}, 'w')",
        f"os.remove({str(tmp_path / 'given/file')!r})",
        f"os.symlink('x', {str(tmp_path / 'secret/link')!r})",
        "open('/proc/1/environ')",
        "open('/etc/passwd')",
    )
    code = "import os\n" + "".join(
        f"try: {each}\nexcept PermissionError: pass\nelse: print({each!r})\n" for each in attempts
    )
    assert run(code, readable=given, writable=output) == ""
    run(f"open({str(tmp_path / 'output/new')!r}, 'w').write('x')", readable=given, writable=output)
    assert (tmp_path / "output" / "new").read_text() == "x"


def test_a_warning_names_exactly_the_protections_missing_in_this_kernel():
    held = failure("1 / 0").detail.partition("sandbox: ")[2].splitlines()[0]
    with structlog.testing.capture_logs() as lines:
        assert run("print('fine')") == "fine"
    expected = [name for name in OPTIONAL if name not in held]
    assert [line["missing"] for line in lines] == ([expected] if expected else [])


WITHOUT_OPTIONAL_PROTECTIONS = """
import platform, sys
import structlog
from prometheus_client import REGISTRY
from core.sandbox import launcher
from adapters.sandbox.parent import run_confined
from adapters.settings import UploadSettings

# A kernel that refuses new namespaces and Landlock: the filter is inherited by the launcher.
launcher._REFUSED_CALLS = {platform.machine(): ({"x86_64": 272, "aarch64": 97}[platform.machine()], 444)}
assert launcher._libc.prctl(38, 1, 0, 0, 0) == 0
launcher.refuse_calls()
with structlog.testing.capture_logs() as lines:
    answer = run_confined(
        [sys.executable, "-I", "-B", "-c", "print('fine')"],  # -B: no bytecode that the file limit truncates
        readable=[], writable=[], file_bytes=1000, settings=UploadSettings(),
    )
counted = {
    name: REGISTRY.get_sample_value("tenora_adapter_unprotected_children_total", {"missing": name})
    for name in ("landlock", "network")
}
print([answer, [(line["log_level"], line["missing"]) for line in lines], counted])
"""


def test_a_kernel_without_landlock_or_network_namespaces_is_logged_and_counted():
    finished = subprocess.run(
        [sys.executable, "-c", WITHOUT_OPTIONAL_PROTECTIONS], capture_output=True, text=True, check=False, timeout=60
    )
    assert finished.returncode == 0, finished.stderr
    answer, lines, counted = ast.literal_eval(finished.stdout)
    assert answer == b"fine\n", "it continues without them"
    ((level, missing),) = lines
    assert level == "warning"
    assert set(missing) - {"own-user"} == {"landlock", "network"}, "a separate user requires readable code"
    assert counted == {"landlock": 1.0, "network": 1.0}
