"""The files of the cache folder: which names become paths, what counts as whole, and how files come and go."""

import pytest

from adapters.cache.cache_folder import AdapterFolder


def test_only_digests_become_paths(tmp_path):
    folder = AdapterFolder(tmp_path)
    for name in ("../../etc", "", "x", "A" * 64):
        with pytest.raises(ValueError, match="no digest"):
            folder.path(name)
