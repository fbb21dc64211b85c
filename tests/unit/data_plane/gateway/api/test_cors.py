"""Which pages a browser lets call the gateway."""

import pytest

from core.errors import Forbidden
from data_plane.gateway.api.cors import Cors
from data_plane.gateway.errors import MethodNotAllowed

PAGE = "https://app.example.com"
SDK_HEADERS = b"authorization,content-type,x-stainless-os,anthropic-dangerous-direct-browser-access"


def asked(origin: str = PAGE, **others: bytes) -> list[tuple[bytes, bytes]]:
    named = [(name.replace("_", "-").encode(), value) for name, value in others.items()]
    return [(b"host", b"x"), (b"origin", origin.encode()), *named]


def test_a_configured_page_may_read_every_answer_and_no_cache_serves_it_to_another():
    headers = dict(Cors([PAGE, "http://localhost:5173"]).headers(asked()))
    assert headers == {
        b"vary": b"origin",
        b"access-control-allow-origin": PAGE.encode(),
        b"access-control-expose-headers": b"*",
    }


@pytest.mark.parametrize("origin", ["https://evil.example", f"{PAGE}.evil.example", "http://app.example.com", "null"])
def test_other_pages_may_read_no_answer_and_announce_no_request(origin):
    cors = Cors([PAGE])
    assert cors.headers(asked(origin)) == [(b"vary", b"origin")]
    with pytest.raises(Forbidden, match="TENORA_GATEWAY_CORS_ORIGINS") as refused:
        cors.preflight(asked(origin, access_control_request_method=b"POST"))
    assert refused.value.code == "origin_not_allowed"


def test_a_configured_page_may_send_the_headers_that_its_sdk_adds():
    announced = asked(access_control_request_method=b"POST", access_control_request_headers=SDK_HEADERS)
    allowed = dict(Cors([PAGE]).preflight(announced))
    assert allowed[b"access-control-allow-headers"] == SDK_HEADERS
    assert allowed[b"access-control-allow-methods"] == b"GET, POST"


@pytest.mark.parametrize(
    ("origins", "headers"), [([], asked(access_control_request_method=b"POST")), ([PAGE], asked()), ([PAGE], [])]
)
def test_options_is_only_for_preflights_and_only_with_configured_origins(origins, headers):
    with pytest.raises(MethodNotAllowed):
        Cors(origins).preflight(headers)


def test_without_configured_origins_answers_carry_nothing_about_them():
    assert Cors([]).headers(asked()) == []
