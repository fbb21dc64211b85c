"""Work that no quota counts: a tenant that floods the gateway with it delays only itself."""

import json
import threading

import httpx
import pytest

from tests.conftest import wait_until
from tests.integration.data_plane.conftest import chat

FLOODERS = 40
LONG = json.dumps({"model": "tiny-chat", "prompt": "capital " * 60_000}).encode()


@pytest.fixture(scope="module")
def gateway_settings():
    return {"tenant_preparing_max": 24, "tokenize_tenant_waiting_max": 8}


def test_a_flood_of_long_token_counts_does_not_stop_another_tenant(stack):
    flooder, quiet = stack.tenant(), stack.tenant()
    flooder.sdk()
    client = quiet.sdk()
    over = threading.Event()
    statuses: list[int] = []

    def flood() -> None:
        headers = {"authorization": f"Bearer {flooder.key}", "content-type": "application/json"}
        with httpx.Client(base_url=stack.gateway.url, headers=headers, timeout=60) as http:
            while not over.is_set():
                try:
                    statuses.append(http.post("/v1/tokenize", content=LONG).status_code)
                except httpx.TransportError:
                    continue  # refused before its body was read: the connection ends while the caller still writes

    threads = [threading.Thread(target=flood) for _ in range(FLOODERS)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: {200, 429} <= set(statuses), what="more than the gateway counts at a time")
        for _ in range(3):
            assert chat(client, "capital " * 1000, timeout=10).choices
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200, 429}
