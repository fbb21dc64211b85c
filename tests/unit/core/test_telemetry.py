"""The fields of every log line of a process, from any thread or request."""

import json
import subprocess
import sys

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
