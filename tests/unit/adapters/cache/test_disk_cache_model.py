"""The disk tier against a model, under any sequence of fetches, releases, deaths, revocations and damage, by two
processes. Leased adapters are never removed, the byte budget holds unless everything in it is leased, and every served
adapter is whole.
"""

import shutil
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from adapters.cache.cache_folder import CacheFolder
from adapters.cache.disk_cache import DiskCache
from adapters.manifest import MANIFEST_FILE, WEIGHTS_FILE
from adapters.settings import CacheSettings
from tests.fixtures.examples import examples
from tests.fixtures.uploads.stored_revisions import make_revision, receive

SIZES = (1, 40_000, 150_000, 300_000, 400_000, 700_000, 900_000, 1_200_000)
REVISIONS = [make_revision(size, seed) for seed, size in enumerate(SIZES)]
BUDGET = 1 << 20  # the smallest value that settings allow
revisions = st.integers(0, len(REVISIONS) - 1)
holders = st.sampled_from(["ad_1", "ad_2"])
processes = st.integers(0, 1)


class DiskCacheMachine(RuleBasedStateMachine):
    held = Bundle("held")

    @initialize()
    def start(self):
        self.root = Path(tempfile.mkdtemp())
        self.settings = CacheSettings(cache_dir=self.root / "cache", cache_bytes=BUDGET, cache_free_bytes_min=0)
        self.tiers = [DiskCache(self.settings), DiskCache(self.settings)]
        self.leases: list[set[tuple[str, str]]] = [set(), set()]
        self.damaged: set[str] = set()

    def teardown(self):
        for tier in self.tiers:
            tier.leases.close()
        shutil.rmtree(self.root)

    @rule(target=held, process=processes, revision=revisions, holder=holders)
    def fetch(self, process, revision, holder):
        manifest, files = REVISIONS[revision]
        tier = self.tiers[process]
        here = manifest.digest in CacheFolder(self.settings.cache_dir).digests()
        taken = tier.acquire(manifest.digest, holder)
        assert taken == (here and manifest.digest not in self.damaged), "a whole adapter on the disk is served"
        if not taken:
            before = self.everything_held()
            receive(tier, manifest, files, holder)
            self.damaged.discard(manifest.digest)
            free = self.on_disk() - before - {manifest.digest}
            total = sum(adapter.size_bytes for adapter in CacheFolder(self.settings.cache_dir).list())
            assert not free or total <= BUDGET + len(files[MANIFEST_FILE]), "every evictable adapter was evicted"
        assert CacheFolder(self.settings.cache_dir).is_complete(manifest.digest)
        self.leases[process].add((manifest.digest, holder))
        return multiple((process, manifest.digest, holder))

    @rule(hold=held)
    def release(self, hold):
        process, digest, holder = hold
        self.tiers[process].leases.release(digest, holder)
        self.tiers[process].flush()
        self.leases[process].discard((digest, holder))

    @rule(process=processes, revision=revisions)
    def evict(self, process, revision):
        digest = REVISIONS[revision][0].digest
        left = self.tiers[process].evict(digest)
        assert bool(left) == (digest in self.everything_held())
        if not left:
            assert digest not in self.on_disk()
            self.damaged.discard(digest)

    @rule(process=processes)
    def die_and_start_again(self, process):
        self.tiers[process].leases.close()
        self.tiers[process] = DiskCache(self.settings)
        self.leases[process].clear()

    @rule(revision=revisions, how=st.sampled_from(["cut", "flip", "unlink", "directory"]))
    def damage(self, revision, how):
        digest = REVISIONS[revision][0].digest
        weights = self.settings.cache_dir / digest / WEIGHTS_FILE
        if not weights.is_file():
            return
        if how == "cut":
            weights.write_bytes(weights.read_bytes()[:-1])
        elif how == "flip":
            content = bytearray(weights.read_bytes() or b"x")
            middle = len(content) // 2
            content[middle] = (content[middle] + 1) % 256  # a second one does not undo the first
            weights.write_bytes(content)
        else:
            weights.unlink()
            if how == "directory":
                weights.mkdir()
        self.damaged.add(digest)

    @invariant()
    def what_is_held_is_here(self):
        assert self.everything_held() <= self.on_disk()

    @invariant()
    def nothing_is_left_in_between(self):
        for name in (".incoming", ".trash", ".locks"):
            assert not any((self.settings.cache_dir / name).iterdir())

    def everything_held(self) -> set[str]:
        return {digest for holds in self.leases for digest, _ in holds}

    def on_disk(self) -> set[str]:
        return set(CacheFolder(self.settings.cache_dir).digests())


TestDiskCache = DiskCacheMachine.TestCase
TestDiskCache.settings = examples(20, stateful_step_count=20)
