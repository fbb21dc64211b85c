"""A request's channel refers to its connection, and the connection's scope does not refer back. Requests and closed
connections are freed at once, and none is left to the garbage collector, which stops every stream.
"""

import gc
import weakref

import pytest

from core.errors import Unavailable
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.routes import _drop_traceback


class Connection:
    """Keeps the scope, as uvicorn's protocol does."""

    def __init__(self) -> None:
        self.scope = {
            "headers": [],
            "method": "GET",
            "raw_path": b"/",
            "query_string": b"",
            "state": {"connection": self},
        }


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()


def test_a_closed_connection_is_freed_at_once(no_collector):
    connection = Connection()
    client = Client(connection.scope, None, None, [])
    gone = weakref.ref(connection)
    del connection, client
    assert gone() is None


def test_an_error_that_ended_a_request_is_freed_with_it(no_collector):
    class Relayed:
        error = None

    def end(relayed: Relayed) -> None:
        raise relayed.error from ValueError("the replica")

    relayed = Relayed()
    relayed.error = Unavailable("late")
    gone = weakref.ref(relayed)
    try:
        end(relayed)
    except Unavailable as error:
        _drop_traceback(error)
    del relayed
    assert gone() is None
