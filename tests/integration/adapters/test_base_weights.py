"""Base weights by digest, against the real S3 server: stored once, verified on each disk, and evicted by age."""

import os

import pytest

from adapters.base_weights import WeightCache, WeightFiles, WeightStore, read_weights
from adapters.manifest import StoredFile
from adapters.object_store.download_progress import Download
from adapters.object_store.s3 import ObjectDamaged, ObjectMissing
from core.errors import InvalidRequest, Unavailable

SIZE = 200_000  # more than a range of the store's settings, so that several are downloaded


class CountingStore(WeightStore):
    def __init__(self, store) -> None:
        super().__init__(store)
        self.downloaded: list[str] = []
        self.breaks_at = ""

    def download(self, digest, file, path, download):
        self.downloaded.append(file.path)
        if file.path == self.breaks_at:
            raise Unavailable("the connection broke", code="store_unavailable")
        super().download(digest, file, path, download)


@pytest.fixture
def weights(store) -> CountingStore:
    return CountingStore(store)


@pytest.fixture
def cache(tmp_path) -> WeightCache:
    return WeightCache(tmp_path / "models", bytes_max=2 * SIZE + 10_000)


@pytest.fixture
def pushed(tmp_path, weights):
    """Store a checkpoint made from a number; returns its folder and digest."""

    def push(number: int):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        (folder / "config.json").write_text(f'{{"number": {number}}}')
        (folder / "model.safetensors").write_bytes(bytes([number]) * SIZE)
        (folder / ".stamp").write_text("of its maker")
        files = read_weights(folder)
        weights.put(folder, files, lambda _sent: None)
        return folder, files.digest

    return push


def content(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def held(cache, weights, digest):
    return cache.held(digest, weights, Download("base weights").begin())


def test_weights_are_downloaded_once_and_are_those_that_were_pushed(cache, weights, pushed):
    folder, digest = pushed(1)
    with held(cache, weights, digest) as cached:
        assert content(cached) == content(folder)
    with held(cache, weights, digest):
        assert weights.downloaded == ["config.json", "model.safetensors"]


def test_a_changed_file_is_found_and_downloaded_again(cache, weights, pushed):
    folder, digest = pushed(1)
    with held(cache, weights, digest) as cached:
        (cached / "model.safetensors").write_bytes(bytes([9]) * SIZE)
    with held(cache, weights, digest) as cached:
        assert content(cached) == content(folder)


def test_an_interrupted_download_goes_on_with_the_files_that_are_missing(cache, weights, pushed):
    folder, digest = pushed(1)
    weights.breaks_at = "model.safetensors"
    with pytest.raises(Unavailable), held(cache, weights, digest):
        pass
    weights.breaks_at = ""
    with held(cache, weights, digest) as cached:
        assert content(cached) == content(folder)
    assert weights.downloaded.count("config.json") == 1


def test_the_weights_unused_for_longest_make_room(tmp_path, cache, weights, pushed):
    digests = [pushed(number)[1] for number in (1, 2, 3)]
    for digest in digests[:2]:
        with held(cache, weights, digest):
            pass
    os.utime(tmp_path / "models" / digests[1], (1, 1))
    with held(cache, weights, digests[2]):
        left = {path.name for path in (tmp_path / "models").iterdir() if path.is_dir()}
    assert left == {digests[0], digests[2], ".incoming"}


def test_weights_that_a_replica_uses_are_never_evicted(cache, weights, pushed):
    one, other, third = (pushed(number)[1] for number in (1, 2, 3))
    with held(cache, weights, one) as first, held(cache, weights, other):
        with pytest.raises(Unavailable) as refused, held(cache, weights, third):
            pass
        assert refused.value.code == "model_cache_full"
        assert "raise TENORA_MODEL_CACHE_BYTES above" in str(refused.value)
        assert (first / "model.safetensors").stat().st_size == SIZE


def test_weights_that_were_never_pushed_are_named_with_the_fix(cache, weights):
    with pytest.raises(ObjectMissing, match="tenora base-models push"), held(cache, weights, "0" * 64):
        pass


def test_a_list_that_names_files_elsewhere_is_refused(store, cache, weights):
    evil = WeightFiles(files=(StoredFile(path="../stolen", size_bytes=0, sha256="0" * 64),))
    store.bucket.client.put_object(
        Bucket=store.bucket.name, Key=f"base_models/{evil.digest}/files.json", Body=evil.to_json()
    )
    with pytest.raises(ObjectDamaged, match="outside its folder"), held(cache, weights, evil.digest):
        pass


def test_a_file_that_changes_while_it_is_sent_is_not_stored(tmp_path, weights, cache, pushed):
    folder, _ = pushed(1)
    (folder / "config.json").write_text("{}")
    files = read_weights(folder)
    with pytest.raises(InvalidRequest, match="has changed while it was sent"):
        weights.put(folder, files, lambda _sent: (folder / "config.json").write_text('{"other": 1}'))
    with pytest.raises(ObjectMissing), held(cache, weights, files.digest):
        pass


def test_a_folder_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidRequest, match=r"no weights.*\.safetensors"):
        read_weights(tmp_path)


def test_a_stopped_download_ends(cache, weights, pushed):
    _, digest = pushed(1)
    download = Download("base weights").begin()
    download.stop.set()
    with pytest.raises(Unavailable), cache.held(digest, weights, download):
        pass
