"""Which process may lease, keep or remove an adapter on a disk shared, swept at starts and changed from outside."""

import os
import time

import pytest

from adapters.cache.disk_cache import DiskCache
from adapters.cache.errors import CacheFailed, CacheFull
from adapters.cache.file_locks import try_lock
from adapters.manifest import MANIFEST_FILE, WEIGHTS_FILE, sha256_of
from adapters.object_store.download_progress import Download
from adapters.settings import CacheSettings
from core.errors import Unavailable
from tests.fixtures.uploads.stored_revisions import make_revision, receive

FIRST, SECOND = make_revision(50_000, 1), make_revision(50_000, 2)
DIGEST, OTHER = FIRST[0].digest, SECOND[0].digest


@pytest.fixture
def open_tier(tmp_path):
    opened = []

    def open_one(**changes) -> DiskCache:
        opened.append(DiskCache(CacheSettings(**{"cache_dir": tmp_path, "cache_free_bytes_min": 0} | changes)))
        return opened[-1]

    yield open_one
    for tier in opened:
        tier.leases.close()


@pytest.fixture
def hashed(monkeypatch):
    """The files that were read for verification."""
    paths = []

    def note(path):
        paths.append(path)
        return sha256_of(path)

    monkeypatch.setattr("adapters.cache.cache_folder.sha256_of", note)
    return paths


def test_verified_files_are_not_read_again_until_they_change(open_tier, tmp_path, hashed):
    tier = open_tier()
    receive(tier, *FIRST)
    for _ in range(3):
        assert tier.acquire(DIGEST, "ad_1")
    assert hashed == []
    weights = tmp_path / DIGEST / WEIGHTS_FILE
    os.utime(weights)
    assert tier.acquire(DIGEST, "ad_1"), "only its modification time has changed"
    assert len(hashed) == 2
    assert tier.acquire(DIGEST, "ad_1")
    assert len(hashed) == 2
    weights.write_bytes(bytes(50_000))
    assert not tier.acquire(DIGEST, "ad_2")
    assert tier.leases.holders(DIGEST) == {"", "ad_1"}, "a refused caller holds no lease"


def swap_for_link(path, tmp_path):
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")


def swap_for_pipe(path, _):
    path.unlink()
    os.mkfifo(path)


def swap_for_folder(path, _):
    path.unlink()
    path.mkdir()
    (path / "file").write_text("x")


@pytest.mark.parametrize("name", [WEIGHTS_FILE, MANIFEST_FILE])
@pytest.mark.parametrize("swap", [swap_for_link, swap_for_pipe, swap_for_folder])
def test_a_path_that_is_not_a_regular_file_is_not_read_and_is_repaired(open_tier, tmp_path, name, swap):
    tier = open_tier()
    receive(tier, *FIRST)
    swap(tmp_path / DIGEST / name, tmp_path)
    assert not tier.acquire(DIGEST, "")
    receive(tier, *FIRST)
    assert tier.acquire(DIGEST, "")
    assert (tmp_path / DIGEST / name).read_bytes() == FIRST[1][name]
    assert not (tmp_path / DIGEST / name).is_symlink()


def test_a_removal_takes_effect_at_once_and_a_failed_one_is_reported(open_tier, tmp_path, monkeypatch):
    tier = open_tier()
    receive(tier, *FIRST)
    tier.leases.release(DIGEST)
    monkeypatch.setattr("adapters.cache.cache_folder.shutil.rmtree", lambda *_, **__: None)
    for _ in range(2):  # also on a second call
        with pytest.raises(CacheFailed):
            tier.evict(DIGEST)
    monkeypatch.undo()
    assert tier.evict(DIGEST) == frozenset()
    assert not list(tmp_path.rglob(WEIGHTS_FILE))


def test_a_start_removes_adapters_unused_for_too_long_and_keeps_those_another_process_leases(open_tier, tmp_path):
    tier = open_tier()
    for revision in (FIRST, SECOND):
        receive(tier, *revision)
        week_ago = time.time() - 8 * 86_400
        os.utime(tmp_path / revision[0].digest, (week_ago, week_ago))
    tier.leases.release(DIGEST)
    tier.flush()
    assert open_tier(cache_age_max_s=9 * 86_400).digests() == {DIGEST, OTHER}
    assert open_tier().digests() == {OTHER}


def test_a_start_removes_downloads_and_trash_of_dead_processes_only(open_tier, tmp_path):
    open_tier()
    for name in (".incoming", ".trash"):
        for digest in (DIGEST, OTHER):
            (tmp_path / name / digest).mkdir()
            (tmp_path / name / digest / WEIGHTS_FILE).write_bytes(b"half")
    living = try_lock(tmp_path / ".locks" / OTHER)
    open_tier()
    assert [path.name for path in (tmp_path / ".incoming").iterdir()] == [OTHER]
    assert not any((tmp_path / ".trash").iterdir())
    os.close(living)


def test_running_downloads_count_towards_the_budget(open_tier, tmp_path):
    tier = open_tier(cache_bytes=1 << 20)
    old, large, small = make_revision(600_000, 3), make_revision(700_000, 4), make_revision(300_000, 5)
    receive(tier, *small)
    receive(tier, *old)
    for manifest in (old[0], small[0]):
        tier.leases.release(manifest.digest)
    assert tier.digests() == {old[0].digest, small[0].digest}
    with tier.download_folder(large[0].digest, Download("x"), timeout_s=1) as incoming:
        tier.reserve(large[0], incoming)
        assert (incoming / WEIGHTS_FILE).stat().st_size == 700_000
        assert tier.digests() == frozenset(), "300,000 alone would also be too much"
        receive(tier, *small)
    assert not any((tmp_path / ".incoming").iterdir())


def test_a_fetch_onto_a_full_disk_is_refused_and_evicts_nothing(open_tier):
    tier = open_tier()
    receive(tier, *FIRST)
    tier.leases.release(DIGEST)
    full = open_tier(cache_free_bytes_min=1 << 60)
    with pytest.raises(CacheFull, match="TENORA_CACHE_DIR"):
        receive(full, *SECOND)
    assert full.digests() == {DIGEST}


def test_a_download_of_another_process_is_awaited_only_for_a_bounded_time(open_tier):
    tier = open_tier()
    theirs = try_lock(tier.folder.lock(DIGEST))
    with pytest.raises(Unavailable) as failed, tier.download_folder(DIGEST, Download("x"), timeout_s=0.1):
        pass
    assert failed.value.code == "store_timeout"
    os.close(theirs)
