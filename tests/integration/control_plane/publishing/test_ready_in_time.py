"""Identical files of two tenants are stored once, and an adapter of 10 MB is ready soon after its last byte."""

import statistics
import time

import pytest

from adapters.object_store.multipart import MIB
from tests.fixtures.control_plane.worker import decided, put_all, running_worker
from tests.fixtures.uploads.peft_adapters import ALL_KINDS, declared_files, tiny_base, write_adapter

READY_S = 3
"""The promise for 10 MB, without the canary run on a replica."""


@pytest.fixture
def large_base(api):
    base = tiny_base(hidden=512, kv=256, intermediate=1024, layers=5)
    api.register(base).raise_for_status()
    return base


@pytest.mark.quiet
def test_ten_megabytes_are_ready_soon_after_the_last_byte(api, settings, large_base, tmp_path):
    tenant = api.tenant(adapter_bytes=20 * MIB, adapter_rank=64)
    tenant.adapter("bot", large_base)
    took = []
    with running_worker(settings):
        for seed in range(3):
            folder = write_adapter(tmp_path / f"a{seed}", large_base, rank=64, modules=ALL_KINDS, seed=seed)
            assert (folder / "adapter_model.safetensors").stat().st_size > 10_000_000
            revision = tenant.announce("bot", declared_files(folder))
            path = f"/api/v1/adapters/bot/revisions/{revision['id']}"
            put_all(revision["uploads"], {file.name: file.read_bytes() for file in folder.iterdir()})
            started = time.monotonic()  # the store has the last byte, and the caller has not completed the revision yet
            assert tenant.http.post(f"{path}/complete").status_code == 202
            assert decided(tenant, path)["status"] == "ready"
            took.append(time.monotonic() - started)
    print(f"10 MB from its last byte to ready: {', '.join(f'{each:.2f}' for each in took)} s")
    assert statistics.median(took) < READY_S
