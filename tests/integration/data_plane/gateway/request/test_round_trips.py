"""The Redis commands of one request, and that it uses no other service: by the server's statistics and the kernel's
tables.
"""

import re
from collections import Counter

import pytest

from tests.integration.data_plane.conftest import chat, connections_of

REQUESTS = 20
MARK = "the-requests-are-done"


@pytest.fixture(scope="module")
def gateway_settings():
    """No lease is renewed, and no settlement retried, while the commands of requests are counted."""
    return {"lease_s": 120, "lease_renewal_s": 60, "settlement_retry_s": 60}


def commands_of(stack, do) -> list[dict]:
    """Every command that Redis counted meanwhile, except those inside scripts."""
    seen = []
    with stack.client.monitor() as monitor:
        do()
        stack.client.echo(MARK)
        while MARK not in (command := monitor.next_command())["command"]:
            if command["client_type"] != "lua":
                seen.append(command)
    return seen


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_request_takes_at_most_three_commands(stack, tenant, stream):
    client = tenant.sdk()
    list(chat(client, stream=True))  # the scripts are loaded now

    def ask() -> None:
        for _ in range(REQUESTS):
            answer = chat(client, max_tokens=4, stream=stream)
            if stream:
                list(answer)

    commands = commands_of(stack, ask)
    lines = {
        command["client_address"] + command["client_port"]
        for command in commands
        if tenant.id in command["command"] and "EVALSHA" in command["command"].upper()
    }
    counted = Counter(
        command["command"].split(" ", 1)[0].upper()
        for command in commands
        if command["client_address"] + command["client_port"] in lines
    )
    assert len(lines) == 1, "a request uses only the one connection"
    assert counted.total() <= 3 * REQUESTS, counted
    assert counted["EVALSHA"] >= 2 * REQUESTS, "reserve and settle are among them"


def test_a_gateway_connects_only_to_redis_and_replicas(stack, tenant):
    chat(tenant.sdk())
    listens = port_of(stack.gateway.url)
    peers = {remote for local, remote in connections_of(stack.gateway.process) if local != listens}
    assert peers == {port_of(stack.redis_url), port_of(stack.witness.url)}


def port_of(url: str) -> int:
    return int(re.search(r":(\d+)(?:/\d+)?$", url)[1])
