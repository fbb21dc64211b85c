"""Users' pip settings mean the same to uv. The tests of install.sh check that a whole set-up obeys them."""

import shlex
from pathlib import Path

import pytest

from requirements.pip_settings import assignments, pip_settings, uv_environment


@pytest.fixture(autouse=True)
def no_system_certificates(monkeypatch):
    monkeypatch.setattr("requirements.pip_settings._SYSTEM_CERTIFICATES", ())


@pytest.mark.parametrize(
    ("pip", "uv"),
    [
        ({"PIP_INDEX_URL": "https://i/simple"}, {"UV_DEFAULT_INDEX": "https://i/simple"}),
        ({"PIP_EXTRA_INDEX_URL": "https://a https://b"}, {"UV_INDEX": "https://a https://b"}),
        ({"PIP_FIND_LINKS": "/a ~/b https://c"}, {"UV_FIND_LINKS": f"/a,{Path.home()}/b,https://c"}),
        ({"PIP_TRUSTED_HOST": "a b:8080"}, {"UV_INSECURE_HOST": "a b:8080"}),
        ({"PIP_DEFAULT_TIMEOUT": "180"}, {"UV_HTTP_TIMEOUT": "180"}),
        ({"PIP_TIMEOUT": "60", "PIP_DEFAULT_TIMEOUT": "180"}, {"UV_HTTP_TIMEOUT": "60"}),
        ({"PIP_RETRIES": "9"}, {"UV_HTTP_RETRIES": "9"}),
        ({"PIP_CERT": "/ca.pem"}, {"SSL_CERT_FILE": "/ca.pem"}),
        ({"REQUESTS_CA_BUNDLE": "/ca.pem"}, {"SSL_CERT_FILE": "/ca.pem"}),
        ({"PIP_CLIENT_CERT": "/me.pem"}, {"SSL_CLIENT_CERT": "/me.pem"}),
        ({"PIP_PROXY": "p:3128"}, {"HTTPS_PROXY": "http://p:3128", "HTTP_PROXY": "http://p:3128"}),
        ({"PIP_PROXY": "socks5://p:1"}, {"HTTPS_PROXY": "socks5://p:1", "HTTP_PROXY": "socks5://p:1"}),
        ({"PIP_CACHE_DIR": "/cache"}, {"UV_CACHE_DIR": "/cache/uv"}),
        ({"PIP_NO_CACHE_DIR": "1", "PIP_CACHE_DIR": "/cache"}, {"UV_NO_CACHE": "1"}),
        ({"PIP_KEYRING_PROVIDER": "subprocess"}, {"UV_KEYRING_PROVIDER": "subprocess"}),
        ({"PIP_KEYRING_PROVIDER": "import", "PIP_INDEX_URL": "", "PIP_PROGRESS_BAR": "off"}, {}),
    ],
)
def test_a_setting_of_pip_means_the_same_to_uv(pip, uv):
    assert uv_environment(pip_settings("", pip), pip) == {"UV_INDEX_STRATEGY": "unsafe-best-match", **uv}


@pytest.mark.parametrize(
    ("pip", "uv"),
    [
        ({"PIP_INDEX_URL": "https://pip"}, {"UV_DEFAULT_INDEX": "https://uv"}),
        ({"PIP_INDEX_URL": "https://pip"}, {"UV_INDEX_URL": "https://uv"}),
        ({"PIP_EXTRA_INDEX_URL": "https://pip"}, {"UV_EXTRA_INDEX_URL": "https://uv"}),
        ({"PIP_FIND_LINKS": "/pip"}, {"UV_FIND_LINKS": "/uv"}),
        ({"PIP_CERT": "/pip"}, {"SSL_CERT_FILE": "/uv"}),
        ({"PIP_CERT": "/pip"}, {"UV_SYSTEM_CERTS": "1"}),
        ({"PIP_PROXY": "pip:1"}, {"ALL_PROXY": "http://uv:1"}),
        ({"PIP_CACHE_DIR": "/pip"}, {"UV_CACHE_DIR": "/uv"}),
        ({"PIP_NO_CACHE_DIR": "1"}, {"UV_CACHE_DIR": "/uv"}),
        ({"PIP_TIMEOUT": "1"}, {"UV_HTTP_TIMEOUT": "2"}),
        ({}, {"UV_INDEX_STRATEGY": "first-index"}),
    ],
)
def test_settings_the_user_made_for_uv_stay(pip, uv):
    assert not set(uv_environment(pip_settings("", pip), {**pip, **uv})) - {"UV_INDEX_STRATEGY"} - set(pip)
    assert not set(uv_environment(pip_settings("", pip), {**pip, **uv})) & set(uv)


def test_pips_files_are_read_and_variables_override_them():
    listed = (
        ":env:.index-url='https://env/simple'\n"
        "global.index-url='https://global/simple'\n"
        "global.extra-index-url='\\nhttps://one\\nhttps://two'\n"
        "global.find_links='/global'\n"
        "global.timeout='10'\n"
        "install.find-links='/install'\n"
        "download.timeout='99'\n"
    )
    assert pip_settings(listed, {"PIP_INDEX_URL": "https://env/simple"}) == {
        "index-url": "https://env/simple",
        "extra-index-url": "\nhttps://one\nhttps://two",
        "find-links": "/install",
        "timeout": "10",
    }


def test_a_machines_own_certificates_are_trusted_where_none_are_named(monkeypatch):
    monkeypatch.setattr("requirements.pip_settings._SYSTEM_CERTIFICATES", (__file__,))
    assert uv_environment({}, {})["UV_SYSTEM_CERTS"] == "1"
    assert "UV_SYSTEM_CERTS" not in uv_environment({"cert": "/ca.pem"}, {})
    assert "UV_SYSTEM_CERTS" not in uv_environment({}, {"SSL_CERT_FILE": "/ca.pem"})


def test_a_shell_reads_each_value_whole():
    settings = {"index-url": "https://u:$(p)'@i/simple", "extra-index-url": "https://a https://b", "no-index": "true"}
    lines = list(assignments(settings, {}))
    assert shlex.split(lines[0]) == ["export", "UV_DEFAULT_INDEX=https://u:$(p)'@i/simple"]
    assert shlex.split(lines[1]) == ["export", "UV_INDEX=https://a https://b"]
    assert lines[-1] == "uv_options=--no-index"
    assert list(assignments({}, {}))[-1] == "uv_options="
