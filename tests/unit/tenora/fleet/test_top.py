"""The rates and queues that `tenora top` shows."""

from contextlib import ExitStack

from prometheus_client import start_http_server

from data_plane.gateway import metrics
from tenora.fleet.top import read_gateways, rows
from tenora.stack.program import free_port


def replica(tokens: int, boot_id: str = "boot_1", **changes) -> dict:
    return {"id": "rep_1", "base_model": "m", "boot_id": boot_id, "counted_tokens": tokens} | changes


def test_tokens_per_second_are_those_between_two_looks_at_one_engine():
    (row,) = rows({"rep_1": replica(100)}, {"rep_1": replica(400)}, seconds=2)
    assert row["tokens_per_s"] == 150


def test_an_engine_that_started_between_the_looks_has_no_rate_yet():
    for before in ({}, {"rep_1": replica(100, boot_id="boot_0")}):
        (row,) = rows(before, {"rep_1": replica(40)}, seconds=2)
        assert row["tokens_per_s"] is None


def test_replicas_are_in_the_order_of_base_models_and_ids():
    now = {name: replica(1, id=name, base_model=model) for name, model in (("b", "x"), ("a", "y"), ("c", "x"))}
    assert [row["id"] for row in rows({}, now, seconds=1)] == ["b", "c", "a"]


def test_gateways_are_those_from_the_first_port_on_up_to_the_first_that_is_none():
    ports = [free_port() for _ in range(4)]
    metrics.RUNNING_REQUESTS.set(3)
    metrics.WAITING_REQUESTS.set(2)
    with ExitStack() as running:
        running.callback(metrics.RUNNING_REQUESTS.set, 0)
        running.callback(metrics.WAITING_REQUESTS.set, 0)
        for port in (ports[0], ports[1], ports[3]):
            server, _ = start_http_server(port, "127.0.0.1")
            running.callback(server.server_close)
            running.callback(server.shutdown)
        has = {"running_requests": 3, "waiting_requests": 2}
        assert read_gateways(ports) == [{"gateway": 1} | has, {"gateway": 2} | has]
    assert read_gateways(ports) == []
    assert read_gateways(None) is None
