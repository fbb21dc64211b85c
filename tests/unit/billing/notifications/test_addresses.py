"""Webhook addresses: only public hosts over https, whatever way a private one is written."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.notifications.addresses import HostLookup, is_allowed, parse_webhook
from core.errors import InvalidRequest, Unprocessable
from tests.fixtures.examples import examples

PRIVATE = (
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "169.254.169.254",
    "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.168.1.1", "198.18.0.1",
    "198.51.100.7", "203.0.113.7", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b:1::a00:1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::1", "2002:808:808::1", "3fff::1", "5f00::1",
    "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "not an address", "",
)  # fmt: skip
PUBLIC = ("1.1.1.1", "8.8.8.8", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450:4001::1")


@pytest.mark.scenario(97)
def test_only_public_addresses_are_allowed():
    assert [each for each in (*PRIVATE, *PUBLIC) if is_allowed(each, allow_loopback=False)] == list(PUBLIC)


def test_the_setting_for_loopback_opens_loopback_alone():
    opened = {each for each in PRIVATE if is_allowed(each, allow_loopback=True)}
    assert opened == {"127.0.0.1", "127.255.255.254", "::1"}


@examples(500)
@given(st.ip_addresses())
def test_no_address_is_allowed_that_python_does_not_know_as_global(address):
    if is_allowed(str(address), allow_loopback=False):
        assert address.is_global
        assert not any((address.is_multicast, address.is_private, address.is_reserved))


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://hooks.example.com", ("https", "hooks.example.com", 443, "/")),
        ("https://HOOKS.example.com/a?b=c&d=%20", ("https", "hooks.example.com", 443, "/a?b=c&d=%20")),
        ("https://example.com:8443/x/../y", ("https", "example.com", 8443, "/x/../y")),
        ("https://example.com.", ("https", "example.com", 443, "/")),
        ("https://[2606:4700::1111]:4443/", ("https", "2606:4700::1111", 4443, "/")),
    ],
)
def test_a_plain_https_url_is_taken_apart(url, parts):
    target = parse_webhook(url, allow_loopback=False)
    assert (target.scheme, target.host, target.port, target.path) == parts


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/", "ftp://example.com/", "example.com", "//example.com", "", "https://", "https:///path",
        "https://user@example.com/", "https://user:password@example.com/", "https://example.com/#part",
        "https://example.com\\@127.0.0.1/", "https://exa mple.com/", "https://example.com/\r\nHost: x", "https://bücher.de",
        "https://example.com:0/", "https://example.com:22/", "https://example.com:80/", "https://example.com:99999/",
        "https://example.com:port/", "https://[::1", "https://[fe80::1%25eth0]/", "https://-example.com/",
        "https://example..com/", "https://" + "a" * 64 + ".com/", "https://example.com/" + "a" * 2048, "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_x", "https://exam%70le.com/",
    ],
)  # fmt: skip
def test_any_other_url_is_refused_with_its_field_and_the_fix(url):
    with pytest.raises(InvalidRequest) as refused:
        parse_webhook(url, allow_loopback=False)
    assert (refused.value.code, refused.value.param) == ("invalid_webhook_address", "address")


def test_http_is_allowed_together_with_loopback():
    assert parse_webhook("http://127.0.0.1:8000/hook", allow_loopback=True).port == 8000


def test_host_headers_name_ports_and_brackets_only_where_needed():
    def host_header(url: str) -> str:
        return parse_webhook(url, allow_loopback=True).host_header

    assert host_header("https://example.com/") == "example.com"
    assert host_header("https://example.com:443/") == "example.com"
    assert host_header("https://example.com:8443/") == "example.com:8443"
    assert host_header("http://[::1]:8000/") == "[::1]:8000"


def lookup(*answers: str, allow_loopback: bool = False) -> list[str]:
    hosts = HostLookup(allow_loopback=allow_loopback, timeout_ms=5_000, resolve=lambda _host, _port: answers)
    try:
        return hosts.addresses(parse_webhook("https://example.com/", allow_loopback=False), tenant_id="tn_1")
    finally:
        hosts.close()


def test_a_host_gives_its_public_addresses_once_each():
    assert lookup("1.1.1.1", "2606:4700::1111", "1.1.1.1") == ["1.1.1.1", "2606:4700::1111"]


@pytest.mark.scenario(97)
@pytest.mark.parametrize("private", ["127.0.0.1", "169.254.169.254", "::1", "10.0.0.8", "::ffff:10.0.0.8"])
def test_one_private_answer_among_public_ones_refuses_the_host(private):
    with pytest.raises(Unprocessable) as refused:
        lookup("1.1.1.1", private)
    assert refused.value.code == "webhook_address_not_public"
    assert private not in refused.value.message, "a tenant learns nothing about our network"


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "017700000001", "localhost"])
def test_other_ways_to_write_loopback_resolve_to_it_and_are_refused(host):
    hosts = HostLookup(allow_loopback=False, timeout_ms=5_000)
    with pytest.raises(Unprocessable):
        hosts.addresses(parse_webhook(f"https://{host}/", allow_loopback=False), tenant_id="tn_1")
    hosts.close()


def test_a_host_without_an_answer_is_refused():
    with pytest.raises(Unprocessable) as refused:
        lookup()
    assert refused.value.code == "webhook_host_not_found"


def test_a_lookup_that_hangs_does_not_hold_its_caller():
    release = threading.Event()
    hosts = HostLookup(allow_loopback=False, timeout_ms=50, resolve=lambda _host, _port: release.wait(60) and [])
    with pytest.raises(Unprocessable) as refused:
        hosts.addresses(parse_webhook("https://example.com/", allow_loopback=False), tenant_id="tn_1")
    assert refused.value.code == "webhook_host_not_found"
    release.set()
    hosts.close()


def test_hosts_of_one_tenant_that_hang_leave_lookups_to_other_tenants():
    hanging, release = threading.Semaphore(0), threading.Event()

    def resolve(host: str, _port: int) -> list[str]:
        if host != "good.example":
            hanging.release()
            release.wait(60)
        return ["1.1.1.1"]

    hosts = HostLookup(allow_loopback=False, timeout_ms=20_000, resolve=resolve)

    def found(host: str, tenant_id: str) -> list[str]:
        return hosts.addresses(parse_webhook(f"https://{host}/", allow_loopback=False), tenant_id=tenant_id)

    with ThreadPoolExecutor(40) as callers:
        waiting = [callers.submit(found, f"hangs-{number}.example", "tn_1") for number in range(40)]
        for _ in range(4):
            assert hanging.acquire(timeout=20)
        assert found("good.example", "tn_2") == ["1.1.1.1"]
        release.set()
        assert [each.result() for each in waiting] == [["1.1.1.1"]] * 40
    hosts.close()
