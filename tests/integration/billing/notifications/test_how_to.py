"""The receiver in docs/how-to/receive-alerts.md, run as it stands there: it accepts what Tenora sends."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.conftest import TLS, wait_until
from tests.fixtures.notifications.receivers import free_port

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "receive-alerts.md"


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def port() -> int:
    return free_port()


def test_the_example_accepts_signed_messages_once_and_refuses_forged_ones(alerts, port, tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    url = f"http://127.0.0.1:{port}/"
    endpoint, secret = alerts.endpoint("tn_1", url)
    with (tmp_path / "out").open("wb") as out:
        receiver = subprocess.Popen(
            [sys.executable, "-c", example],
            env=os.environ | {"TENORA_WEBHOOK_SECRET": secret, "PORT": str(port)},
            stdout=out,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: listens(port), what="the example")
            alerts.notify("tn_1", "spend:50")
            (claimed,) = alerts.queue.claim(1)
            for _ in range(2):
                assert alerts.courier().attempt(claimed).error is None
            alerts.queue.record(claimed, alerts.courier().attempt(claimed))
            forged = httpx.post(url, json={"type": "balance.low"}, headers={"webhook-id": "ntf_1"}, verify=TLS)
            assert forged.status_code == 400
        finally:
            receiver.kill()
            receiver.wait()
    printed = (tmp_path / "out").read_text().splitlines()
    assert len(printed) == 1
    assert printed[0].startswith("spend.threshold_reached {")
    assert alerts.deliveries(endpoint)[0]["state"] == "delivered"
