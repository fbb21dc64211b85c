"""The fields of every log line of a process, from any thread or request. Each case runs in a separate process."""

import json
import subprocess
import sys

SET_UP = """
import threading
import structlog
from core import telemetry
from core.settings import TelemetrySettings

telemetry.set_up("worker", TelemetrySettings(metrics_port=0))
"""


def lines_of(code: str) -> list[dict]:
    """The log lines of a process that set up telemetry and ran ``code``."""
    ran = subprocess.run([sys.executable, "-c", SET_UP + code], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_a_line_from_a_new_thread_names_the_process():
    lines = lines_of("""
thread = threading.Thread(target=lambda: structlog.get_logger().warning("from a thread"))
thread.start()
thread.join()
""")
    assert [(line["event"], line["process"]) for line in lines] == [("from a thread", "worker")]


def test_fields_bound_by_a_request_are_on_its_log_lines_with_the_processs_fields():
    within, after = lines_of("""
with structlog.contextvars.bound_contextvars(request_id="req_1"):
    structlog.get_logger().warning("within")
structlog.get_logger().warning("after")
""")
    assert (within["process"], within["request_id"]) == ("worker", "req_1")
    assert "request_id" not in after
