"""What a hostile or broken receiver can do to a sender: redirect it, stall it, flood it, or move its name (SSRF)."""

import socket
import threading
import time

import pytest

from billing.notifications.addresses import HostLookup, parse_webhook
from billing.notifications.webhook_sender import WebhookSender, _PinnedAddresses
from tests.fixtures.notifications.receivers import certificate, free_port, webhook_receiver

HEADERS = {"webhook-id": "ntf_1"}


@pytest.fixture
def send():
    opened = []

    def send(url: str, *, resolve=None, allow_loopback: bool = True, timeout_ms: int = 5_000, tls=None):
        hosts = HostLookup(allow_loopback=allow_loopback, timeout_ms=5_000, resolve=resolve)
        opened.append(hosts)
        sender = WebhookSender(hosts, timeout_ms=timeout_ms, response_bytes_max=1_000, tls=tls)
        return sender.send(url, HEADERS, "{}", tenant_id="tn_1")

    yield send
    for each in opened:
        each.close()


@pytest.fixture
def contacted(monkeypatch) -> list[tuple]:
    """Every address that a socket of this process connects to."""
    found: list[tuple] = []

    class Spy(socket.socket):
        def connect(self, address) -> None:
            found.append(address)
            super().connect(address)

        def connect_ex(self, address) -> int:
            found.append(address)
            return super().connect_ex(address)

    monkeypatch.setattr(socket, "socket", Spy)
    return found


@pytest.mark.scenario(97)
@pytest.mark.parametrize("status", [301, 307])
def test_a_redirect_is_not_followed(send, hook, status):
    with webhook_receiver() as other:
        hook.status, hook.headers = status, {"location": other.url}
        attempt = send(hook.url)
        assert attempt.error == f"the host answered {status}; redirects are not followed"
        assert (len(hook.received), other.connections) == (1, 0)


@pytest.mark.scenario(97)
@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "::ffff:127.0.0.1"],
)
def test_a_host_that_resolves_to_a_private_address_at_delivery_is_never_contacted(send, contacted, hook, address):
    attempt = send(
        f"https://hooks.example.com:{hook.port}/", resolve=lambda _host, _port: [address], allow_loopback=False
    )
    assert attempt.error == (
        "address: the host hooks.example.com has an address that is not public. Use a host on the internet."
    )
    assert (contacted, hook.connections) == ([], 0)


@pytest.mark.scenario(97)
@pytest.mark.parametrize("host", ["[::1]", "2130706433"])
def test_a_private_address_in_the_url_itself_is_never_contacted(send, contacted, hook, host):
    assert send(f"https://{host}:{hook.port}/", allow_loopback=False).error is not None
    assert (contacted, hook.connections) == ([], 0)


@pytest.mark.scenario(97)
def test_a_name_that_moves_after_the_check_leads_to_the_checked_address(send, hook):
    """DNS rebinding: the name is looked up once, so the second answer is never asked for."""
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])
    assert send(f"http://rebind.example.com:{hook.port}/", resolve=lambda _host, _port: next(answers)).error is None
    assert hook.received[0].headers["host"] == f"rebind.example.com:{hook.port}"
    assert next(answers) == ["169.254.169.254"], "nothing asked for it"


def test_no_socket_is_made_for_an_address_that_was_not_checked():
    pinned = _PinnedAddresses(["127.0.0.1"])
    pinned.socket((socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 80))).close()
    with pytest.raises(OSError, match="not checked"):
        pinned.socket((socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("169.254.169.254", 80)))


def test_proxies_of_the_environment_are_not_used(send, hook, monkeypatch):
    with webhook_receiver() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        assert send(hook.url).error is None
        assert proxy.connections == 0


def test_tls_asks_for_the_host_and_checks_its_certificate_at_the_pinned_address(send, tmp_path):
    server, client = certificate(tmp_path, "hooks.example.com")
    with webhook_receiver(server) as receiver:

        def to(host: str):
            return send(f"https://{host}:{receiver.port}/", resolve=lambda _host, _port: ["127.0.0.1"], tls=client)

        assert to("hooks.example.com").error is None
        assert receiver.names == ["hooks.example.com"]
        assert to("other.example.com").error == "the TLS handshake failed; check the certificate of the host"
        assert len(receiver.received) == 1
        untrusted = send(f"https://hooks.example.com:{receiver.port}/", resolve=lambda _host, _port: ["127.0.0.1"])
        assert untrusted.error == "the TLS handshake failed; check the certificate of the host"


def test_an_answer_that_never_comes_ends_after_the_whole_time(send, hook):
    hook.hold.clear()
    begun = time.monotonic()
    assert send(hook.url, timeout_ms=300).error == "no complete answer within 300 ms"
    assert time.monotonic() - begun < 5


def test_an_answer_that_drips_ends_after_the_whole_time(send):
    """Each byte comes within any timeout of a single read."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                try:
                    while True:
                        connection.sendall(b"x")
                        time.sleep(0.02)
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        assert send(url, timeout_ms=400).error is not None
        thread.join(30)
        assert not thread.is_alive()


def test_a_large_answer_is_not_read_to_its_end(send, hook):
    hook.body = b"x" * 50_000_000
    begun = time.monotonic()
    assert send(hook.url, timeout_ms=10_000).error is None
    assert time.monotonic() - begun < 5


def test_an_accepted_message_stays_accepted_if_the_answer_breaks_off_or_never_ends(send, hook):
    hook.body_bytes_missing = 10
    assert send(hook.url).error is None
    hook.finish.clear()
    assert send(hook.url, timeout_ms=300).error is None


def test_a_compressed_answer_is_not_unpacked(send, hook):
    hook.headers, hook.body = {"content-encoding": "gzip"}, b"no gzip"
    assert send(hook.url).error is None


def test_no_listener_and_nonsense_are_errors_without_details_of_the_network(send):
    refused = send(f"http://127.0.0.1:{free_port()}/").error
    assert refused == "the host did not accept the connection"
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def nonsense() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")

        thread = threading.Thread(target=nonsense)
        thread.start()
        assert send(f"http://127.0.0.1:{listening.getsockname()[1]}/").error == (
            "the host did not give a valid HTTP answer"
        )
        thread.join(30)


@pytest.mark.parametrize(
    ("given", "read"),
    [("120", 120), ("-1", None), ("1e9", None), ("9" * 20, None), ("Wed, 21 Oct 2026 07:28:00 GMT", None)],
)
def test_retry_after_counts_in_whole_seconds(send, hook, given, read):
    hook.status, hook.headers = 429, {"retry-after": given}
    assert send(hook.url).retry_after_s == read


def test_a_url_that_was_registered_before_a_rule_became_stricter_is_checked_again(send):
    assert "address:" in send("http://example.com/", allow_loopback=False).error
    assert parse_webhook("https://example.com/", allow_loopback=False).host == "example.com"
