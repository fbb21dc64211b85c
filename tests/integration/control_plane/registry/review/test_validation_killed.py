"""The validator is killed during an upload: only its child process, or the worker with it. The revision never
becomes ready.
"""

import contextlib
import gc
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import psutil
import pytest
import sqlalchemy as sa

from core import redis_keys
from tests.conftest import wait_until
from tests.fixtures.control_plane.worker import decided, running_worker, upload
from tests.fixtures.faults.tcp_proxy import FaultsProxy, faults_proxy
from tests.fixtures.uploads.peft_adapters import ALL_KINDS, tiny_base, write_adapter

ADAPTER = "router"
LARGE = tiny_base(layers=8, hidden=512, kv=256, intermediate=1024)  # large enough for validation to take a moment


@pytest.fixture
def path(api, tmp_path) -> str:
    """A valid upload of 20 MB that waits for its validation."""
    api.register(LARGE).raise_for_status()
    tenant = api.tenant(adapter_bytes=60_000_000)
    tenant.adapter(ADAPTER, LARGE)
    return tenant, upload(tenant, ADAPTER, write_adapter(tmp_path / "a", LARGE, rank=16, modules=ALL_KINDS))


@contextlib.contextmanager
def held_back_worker(settings, **extra: str) -> Iterator[tuple[subprocess.Popen, FaultsProxy]]:
    """A worker that has claimed the waiting upload, and gets no answer from S3 until its proxy forwards requests."""
    with faults_proxy(urlsplit(settings.s3.s3_endpoint).port) as s3:
        s3.set(stall=True)
        with running_worker(settings, TENORA_S3_ENDPOINT=f"http://127.0.0.1:{s3.port}", **extra) as worker:
            yield worker, s3


def child_of(worker: subprocess.Popen, s3: FaultsProxy) -> psutil.Process:
    """The validating child, paused as soon as it exists, so that the next step finds it alive. It lives for a tenth of
    a second, so this function does nothing else meanwhile.
    """
    parent, deadline = psutil.Process(worker.pid), time.monotonic() + 30
    gc.disable()
    try:
        s3.set()
        while time.monotonic() < deadline:
            for child in parent.children():
                try:
                    child.suspend()
                    if "adapters.sandbox.child" in child.cmdline():
                        return child
                    child.resume()
                except psutil.NoSuchProcess:
                    continue
    finally:
        gc.enable()
    pytest.fail("the worker started no validating child")


def is_over(child: psutil.Process) -> bool:
    """Whether it has ended. A child paused before it requested its parent-death signal has to check for itself."""
    try:
        child.resume()
        return child.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def never_ready(engine: sa.Engine, redis) -> None:
    with engine.connect() as connection:
        actions = set(connection.exec_driver_sql("SELECT action FROM audit_events").scalars())
        digests = list(connection.exec_driver_sql("SELECT digest FROM revisions WHERE digest IS NOT NULL").scalars())
    assert "revision.accepted" not in actions
    assert digests == []
    assert redis.hgetall(redis_keys.snapshot("adapters")) == {}


def test_a_killed_child_rejects_the_revision(path, settings, engine, redis):
    tenant, path = path
    with held_back_worker(settings) as (worker, s3):
        os.kill(child_of(worker, s3).pid, signal.SIGKILL)
        revision = decided(tenant, path)
        assert worker.poll() is None, "only the child was killed"
    (problem,) = revision["report"]["problems"]
    assert (revision["status"], revision["sha256"], problem["code"]) == ("rejected", None, "validation_failed")
    assert "save the adapter again" in problem["message"]
    never_ready(engine, redis)


def test_a_hanging_child_rejects_the_revision(path, settings, engine, redis):
    tenant, path = path
    with held_back_worker(settings, TENORA_UPLOAD_VALIDATION_TIMEOUT_S="2") as (worker, s3):
        child = child_of(worker, s3)
        revision = decided(tenant, path)
        assert not child.is_running()
    assert [problem["code"] for problem in revision["report"]["problems"]] == ["validation_timeout"]
    never_ready(engine, redis)


def test_an_upload_whose_workers_are_all_killed_is_retried_and_then_rejected(path, settings, engine, redis):
    tenant, path = path
    limits = {"TENORA_VALIDATION_LEASE_S": "1", "TENORA_VALIDATION_ATTEMPTS_MAX": "2"}
    for attempt in (1, 2):
        with held_back_worker(settings, **limits) as (worker, s3):
            child = child_of(worker, s3)
            assert attempts(engine) == attempt
            worker.kill()
            worker.wait()
            wait_until(lambda child=child: is_over(child), what="the child's end with its worker")
        assert tenant.http.get(path).json()["status"] == "validating"
    with running_worker(settings, **limits):
        revision = decided(tenant, path)
    (problem,) = revision["report"]["problems"]
    assert (revision["status"], problem["code"]) == ("rejected", "validation_failed")
    assert "cut short 2 times" in problem["message"]
    assert attempts(engine) == 2
    never_ready(engine, redis)


def test_an_upload_whose_worker_is_killed_once_still_becomes_ready(path, settings, engine):
    tenant, path = path
    with held_back_worker(settings, TENORA_VALIDATION_LEASE_S="1") as (worker, s3):
        child = child_of(worker, s3)
        worker.kill()
        wait_until(lambda: is_over(child), what="the child's end with its worker")
    with running_worker(settings):
        assert decided(tenant, path)["status"] == "ready"
    assert attempts(engine) == 2


def attempts(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return connection.exec_driver_sql("SELECT attempts FROM revisions").scalar_one()
