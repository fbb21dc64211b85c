"""The fields of every log line of a process, from any thread or request."""

import http.client
import json
import socket
import subprocess
import sys
from decimal import Decimal

import pytest

from core import telemetry
from core.settings import TelemetrySettings
from tenora.stack.program import free_port

PROGRAM = """
import threading
import structlog
from core import telemetry
from core.settings import TelemetrySettings

telemetry.set_up("worker", TelemetrySettings(metrics_port=0))
thread = threading.Thread(target=lambda: structlog.get_logger().warning("from a thread"))
thread.start()
thread.join()
with structlog.contextvars.bound_contextvars(request_id="req_1"):
    structlog.get_logger().warning("within")
structlog.get_logger().warning("after")
"""


def test_each_line_names_the_process_and_the_request_within_which_it_is_written():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [(line["event"], line["process"], line.get("request_id")) for line in lines] == [
        ("from a thread", "worker", None), ("within", "worker", "req_1"), ("after", "worker", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("half a pair \ud800", "half a pair \ud800"),
        (2**70, 2**70),
        (ValueError("no"), "ValueError('no')"),
        (Decimal("1.20"), "1.20"),
    ],
)
def test_an_event_is_one_line_whatever_it_holds(value, written):
    line = telemetry.to_json({"event": "odd\n", "value": value})
    assert b"\n" not in line
    assert json.loads(line) == {"event": "odd\n", "value": written}


@pytest.mark.parametrize(("level", "logged"), [("debug", True), ("info", True), ("warning", False)])
def test_a_line_of_a_level_is_written_from_the_level_of_the_settings_on(level, logged):
    assert telemetry.is_logged("info", TelemetrySettings(log_level=level)) is logged


PROBED = """
import sys
from core import telemetry
from core.settings import TelemetrySettings

telemetry._Handler.timeout = 0.2
telemetry.set_up("worker", TelemetrySettings(metrics_host=sys.argv[1], metrics_port=int(sys.argv[2])))
print("up", flush=True)
for line in sys.stdin:
    telemetry.report_readiness(line.strip)
    print("said", flush=True)
"""


@pytest.mark.parametrize("host", ["127.0.0.2", "::1"])
def test_probes_and_metrics_answer_on_the_address_of_the_settings(host):
    port = free_port()

    def ask(path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(host, port, timeout=10)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode().strip()

    command = [sys.executable, "-c", PROBED, host, str(port)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes, text=True, bufsize=1) as process:

        def report(reason: str) -> None:
            process.stdin.write(reason + "\n")
            assert process.stdout.readline() == "said\n"

        try:
            assert process.stdout.readline() == "up\n"
            assert [ask("/livez"), ask("/readyz")] == [(200, "alive"), (503, "it is starting")]
            report("no database")
            assert [ask("/livez"), ask("/readyz")] == [(200, "alive"), (503, "no database")]
            report("")
            assert ask("/readyz") == (200, "ready")
            assert "process_cpu_seconds_total" in ask("/metrics")[1]
            assert ask("/else")[0] == 404
            with socket.create_connection((host, port), timeout=10) as slow:
                slow.sendall(b"GET /livez")
                assert slow.recv(100) == b"", "the process ends the connection of a client that is too slow"
        finally:
            process.kill()
        assert process.stderr.read() == ""
