"""The port of a worker's metrics and probes."""

import socket
from types import SimpleNamespace

import pytest

from data_plane.gateway.server import _free_from


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_worker_takes_no_port_of_another_one(family, host):
    with socket.socket(family) as other:
        other.bind((host, 0))
        other.listen()
        port = other.getsockname()[1]
        assert port < _free_from(SimpleNamespace(metrics_host=host, metrics_port=port)) < port + 64
