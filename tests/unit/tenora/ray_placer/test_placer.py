"""Which applications a pool has, and how the placer shows who it is. The rest runs on Ray: tests/integration."""

import pytest

from core.contracts.fleet import WantedPool, WantedRevision
from tenora.ray_placer.placer import application, surplus
from tenora.ray_placer.process import auth_headers


def pool(name: str, *numbers: int) -> WantedPool:
    revisions = tuple(WantedRevision(number=number, replicas=1, environment={}) for number in numbers)
    return WantedPool(pool=name, revisions=revisions)


def test_revisions_that_are_no_longer_wanted_are_surplus_and_those_of_others_are_not():
    there = [application(*of) for of in (("chat", 1), ("chat", 2), ("chat-1", 1), ("other", 3))]
    assert surplus(pool("chat", 2), [*there, "somebody-elses"]) == [application("chat", 1)]
    assert surplus(pool("chat"), there) == [application("chat", 1), application("chat", 2)]
    assert surplus(pool("chat-1", 1), there) == []


@pytest.fixture
def token_file(tmp_path, monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "auth_token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    return file


def test_the_token_is_that_of_the_environment_then_of_the_file(token_file, monkeypatch):
    assert auth_headers() == {}
    token_file.write_text("from-the-file\n")
    assert auth_headers() == {"Authorization": "Bearer from-the-file"}
    monkeypatch.setenv("RAY_AUTH_TOKEN", "from-the-environment")
    assert auth_headers() == {"Authorization": "Bearer from-the-environment"}


def test_a_cluster_without_token_authentication_gets_none(token_file, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "unused")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert auth_headers() == {}
