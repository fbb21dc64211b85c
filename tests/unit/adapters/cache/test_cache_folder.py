"""The files of the cache folder: which names become paths, and which adapters are evicted to make room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.cache.cache_folder import CachedAdapter, CacheFolder, choose_evictions

adapters = st.lists(
    st.builds(
        CachedAdapter,
        digest=st.text("0123456789abcdef", min_size=4, max_size=4),
        size_bytes=st.integers(0, 100),
        used_at_ns=st.integers(0, 50),
    ),
    max_size=12,
    unique_by=lambda adapter: adapter.digest,
)


@given(adapters, st.integers(0, 200), st.integers(0, 500), st.data())
def test_the_least_recently_used_are_evicted_until_it_fits_and_never_a_protected_one(found, needed, budget, data):
    protected = frozenset(data.draw(st.sets(st.sampled_from(found).map(lambda a: a.digest)))) if found else frozenset()
    victims, excess = choose_evictions(found, needed_bytes=needed, budget_bytes=budget, protected=protected)
    assert protected.isdisjoint(victims)
    kept = [adapter for adapter in found if adapter.digest not in victims]
    total = sum(adapter.size_bytes for adapter in kept) + needed
    assert excess == max(0, total - budget)
    if excess:
        assert {adapter.digest for adapter in kept} <= protected, "every evictable adapter was evicted"
    by_digest = {adapter.digest: adapter for adapter in found}
    free = [adapter for adapter in kept if adapter.digest not in protected]
    assert all(by_digest[victim].used_at_ns <= adapter.used_at_ns for victim in victims for adapter in free)
    if victims:
        assert total + by_digest[victims[-1]].size_bytes > budget, "only the necessary ones were evicted"


def test_only_digests_become_paths(tmp_path):
    folder = CacheFolder(tmp_path)
    for name in ("../../etc", "", "x", "A" * 64):
        with pytest.raises(ValueError, match="no digest"):
            folder.path(name)


def test_only_the_owner_can_read_the_cache(tmp_path):
    CacheFolder(tmp_path / "cache")
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0
