"""The simulator as a process, the official SDK, and a receiver of webhooks on loopback."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import stripe

from tests.fixtures.stripe_simulator import RunningSimulator, running_simulator, shapes_checked

SECRET = "whsec_of_both_sides"


@dataclass
class Receiver:
    """Answers ``status`` and keeps what was posted."""

    url: str = ""
    status: int = 200
    posts: list[tuple[bytes, str]] = field(default_factory=list)  # body and signature

    def types(self, secret: str = SECRET) -> list[str]:
        """The types of the events, each verified by the SDK."""
        return [stripe.Webhook.construct_event(body, signature, secret).type for body, signature in self.posts]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    received = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.posts.append((body, self.headers["Stripe-Signature"]))
            self.send_response(received.status)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    received.url = f"http://127.0.0.1:{server.server_port}/hook"
    yield received
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def simulator(tmp_path_factory) -> Iterator[RunningSimulator]:
    with running_simulator(tmp_path_factory.mktemp("stripe") / "home") as simulator:
        yield simulator


@pytest.fixture
def api(simulator) -> Iterator:
    with shapes_checked():
        yield simulator.sdk().v1


@pytest.fixture
def listening(simulator, receiver) -> Iterator[None]:
    """The receiver gets the events of customers while the test runs."""
    types = ["customer.created", "customer.updated", "customer.deleted"]
    simulator.control("POST", "listener", {"url": receiver.url, "secrets": [SECRET], "types": types})
    yield
    simulator.control("DELETE", "listener")
    simulator.control("POST", "delivery", {})
