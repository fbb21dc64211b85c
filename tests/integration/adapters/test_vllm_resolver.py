"""The resolver as vLLM calls it: real requests for real revisions, and nothing for any other name."""

import shutil

import pytest
from fastapi import HTTPException

from adapters.cache.cache_folder import CacheFolder
from adapters.settings import CacheSettings, StoreSettings
from core.ids import new_id
from tests.fixtures.late_import import LateModule
from tests.fixtures.uploads.peft_adapters import TINY_BASE_ID

vllm_resolver = LateModule("adapters.vllm_resolver")
vllm_resolvers = LateModule("vllm.lora.resolver")


@pytest.fixture
def cache_settings(tmp_path):
    return CacheSettings(cache_dir=tmp_path / "cache", cache_free_bytes_min=0)


@pytest.fixture
def registered(bucket_settings, cache_settings, monkeypatch):
    """Register as the replica does; returns the resolver that vLLM would call."""
    monkeypatch.setattr(vllm_resolvers.LoRAResolverRegistry, "resolvers", {})
    caches = []

    def register(*, base_model=TINY_BASE_ID, **s3):
        store = StoreSettings(store_attempts_max=1, store_connect_timeout_s=1)
        caches.append(vllm_resolver.register(base_model, bucket_settings.model_copy(update=s3), store, cache_settings))
        return vllm_resolvers.LoRAResolverRegistry.get_resolver(vllm_resolver.REGISTERED_NAME)

    yield register
    for cache in caches:
        cache.close()


async def test_a_stored_revision_resolves_to_its_folder_on_the_disk(stored, registered, cache_settings):
    digest = stored()
    name = f"{new_id('ad')}@{digest}"
    request = await registered().resolve_lora("/models/served", name)
    assert request.lora_name == name
    assert request.lora_path == str(cache_settings.cache_dir / digest)
    assert request.lora_int_id > 0


@pytest.mark.parametrize(
    "name",
    [
        "",
        "smollm2-135m-instruct",
        "a" * 64,
        "../../etc/passwd",
        "/etc/passwd",
        "ad_" + "0" * 26,
        "ad_" + "0" * 26 + "@" + "a" * 63,
        "ad_" + "0" * 26 + "@" + "a" * 64 + "\n",
        "ad_" + "0" * 26 + "@" + "A" * 64,
        "ad_" + "i" * 26 + "@" + "a" * 64,
        "tn_" + "0" * 26 + "@" + "a" * 64,
        "ad_" + "0" * 26 + "@../" + "a" * 61,
        "x" * 1_000_000,
    ],
)
async def test_any_other_name_is_none_without_touching_store_or_disk(registered, cache_settings, name):
    asked = registered(s3_endpoint="http://127.0.0.1:9")
    before = sorted(cache_settings.cache_dir.rglob("*"))
    assert await asked.resolve_lora("/models/served", name) is None
    assert sorted(cache_settings.cache_dir.rglob("*")) == before


async def test_a_digest_that_is_not_stored_is_none(registered, store):
    assert await registered().resolve_lora("/models/served", f"{new_id('ad')}@{'a' * 64}") is None


async def test_an_adapter_of_another_base_model_is_none(stored, registered):
    name = f"{new_id('ad')}@{stored()}"
    assert await registered(base_model="other-7b").resolve_lora("/models/served", name) is None


async def test_a_store_that_is_down_is_503_and_not_404(registered):
    asked = registered(s3_endpoint="http://127.0.0.1:9")
    with pytest.raises(HTTPException) as failed:
        await asked.resolve_lora("/models/served", f"{new_id('ad')}@{'a' * 64}")
    assert failed.value.status_code == 503
    assert "127.0.0.1" not in failed.value.detail


async def test_a_folder_that_is_removed_meanwhile_is_fetched_again(stored, registered, cache_settings, monkeypatch):
    asked, name = registered(), f"{new_id('ad')}@{stored()}"
    install, taken = CacheFolder.install, []

    def taken_away(folder, incoming, digest):
        if not taken:
            taken.append(digest)
            shutil.rmtree(cache_settings.cache_dir)
        install(folder, incoming, digest)

    monkeypatch.setattr(CacheFolder, "install", taken_away)
    assert (await asked.resolve_lora("/models/served", name)).lora_name == name
    assert taken
