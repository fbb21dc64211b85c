"""Where profiles lie, who reads them, and which key a call uses."""

import stat

import pytest

from core.errors import InvalidSettings
from tenora.client import Tenora
from tenora.profiles import Profile, find_access, profiles_file, read_profiles, write_profiles

WORK = Profile(control_url="https://c.example", gateway_url="https://g.example", tenant="Acme", key_id="key_1",
               api_key="tnr_live_work")  # fmt: skip


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("API_KEY", "CONTROL_URL", "GATEWAY_URL", "PROFILE"):
        monkeypatch.delenv(f"TENORA_{name}", raising=False)
    return tmp_path


def test_profiles_are_kept_in_a_file_that_its_owner_alone_reads(home):
    assert read_profiles() == {}
    write_profiles({"work": WORK})
    assert read_profiles() == {"work": WORK}
    assert profiles_file() == home / "tenora" / "profiles.json"
    assert stat.S_IMODE(profiles_file().stat().st_mode) == 0o600
    assert stat.S_IMODE(profiles_file().parent.stat().st_mode) == 0o700
    assert [each.name for each in profiles_file().parent.iterdir()] == ["profiles.json"]
    assert "tnr_live" not in repr(WORK)


def test_a_relative_folder_of_xdg_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profiles_file() == tmp_path / ".config" / "tenora" / "profiles.json"


@pytest.mark.parametrize("text", ["", "[]", '{"work": 1}', '{"work": {"api_key": "x"}}', "\udcff"])
def test_a_file_with_something_else_is_named(text):
    write_profiles({})
    profiles_file().write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InvalidSettings, match=r"profiles\.json"):
        read_profiles()


def test_the_profile_gives_what_neither_option_nor_variable_says(monkeypatch):
    write_profiles({"default": WORK})
    assert find_access(None, None) == ("https://c.example", "tnr_live_work", "https://g.example")
    assert find_access("https://c.example/", None)[1] == "tnr_live_work"
    assert find_access(None, None, "https://other.example")[2] == "https://other.example"
    monkeypatch.setenv("TENORA_API_KEY", "tnr_live_env")
    assert find_access(None, None) == (None, "tnr_live_env", None)
    assert find_access(None, "tnr_live_given")[1] == "tnr_live_given"


def test_a_profiles_key_goes_to_its_own_control_plane_alone(monkeypatch):
    write_profiles({"default": WORK})
    assert find_access("https://elsewhere.example", None) == ("https://elsewhere.example", None, None)
    monkeypatch.setenv("TENORA_CONTROL_URL", "https://elsewhere.example")
    assert find_access(None, None)[1] is None


def test_a_profile_is_chosen_by_name(monkeypatch):
    write_profiles({"work": WORK})
    assert find_access(None, None)[1] is None
    assert find_access(None, None, profile="work")[1] == "tnr_live_work"
    monkeypatch.setenv("TENORA_PROFILE", "work")
    assert find_access(None, None)[1] == "tnr_live_work"
    with pytest.raises(InvalidSettings, match="tenora login --profile home"):
        find_access(None, None, profile="home")


def test_the_client_calls_as_the_profile_says():
    write_profiles({"default": WORK})
    with Tenora() as client:
        assert client.url == "https://c.example"
