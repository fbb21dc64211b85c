"""The validator is killed during an upload: only its child process, or the worker with it. The revision never
becomes ready.
"""

import contextlib
import os
import signal
import subprocess

import psutil
import pytest
import sqlalchemy as sa

from core import redis_keys
from tests.conftest import wait_until
from tests.fixtures.control_plane.api import Tenant
from tests.fixtures.control_plane.worker import decided, running_worker, upload
from tests.fixtures.uploads.peft_adapters import write_adapter

ADAPTER = "router"


@pytest.fixture
def path(api, base, tmp_path) -> tuple[Tenant, str]:
    """A tenant, and its valid upload that waits for validation."""
    tenant = api.tenant()
    tenant.adapter(ADAPTER, base)
    return tenant, upload(tenant, ADAPTER, write_adapter(tmp_path / "a", base, rank=8))


def pausing_worker(settings, **extra: str) -> contextlib.AbstractContextManager[subprocess.Popen]:
    """A worker whose validating children are paused as they start."""
    return running_worker(settings, ["tests.fixtures.control_plane.worker_with_paused_children"], **extra)


def child_of(worker: subprocess.Popen) -> psutil.Process:
    """The validating child, which is paused."""

    def paused() -> psutil.Process | None:
        for child in psutil.Process(worker.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.status() == psutil.STATUS_STOPPED and "adapters.sandbox.child" in child.cmdline():
                    return child
        return None

    return wait_until(paused, timeout_s=60, what="the validating child")


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
    with pausing_worker(settings) as worker:
        os.kill(child_of(worker).pid, signal.SIGKILL)
        revision = decided(tenant, path)
        assert worker.poll() is None, "only the child was killed"
    (problem,) = revision["report"]["problems"]
    assert (revision["status"], revision["sha256"], problem["code"]) == ("rejected", None, "validation_failed")
    assert "save the adapter again" in problem["message"]
    never_ready(engine, redis)


def test_a_hanging_child_rejects_the_revision(path, settings, engine, redis):
    tenant, path = path
    with pausing_worker(settings, TENORA_UPLOAD_VALIDATION_TIMEOUT_S="2") as worker:
        child = child_of(worker)
        revision = decided(tenant, path)
        assert not child.is_running()
    assert [problem["code"] for problem in revision["report"]["problems"]] == ["validation_timeout"]
    never_ready(engine, redis)


def test_an_upload_whose_worker_is_killed_at_its_last_attempt_is_rejected(path, settings, engine, redis):
    tenant, path = path
    limits = {"TENORA_VALIDATION_LEASE_S": "1", "TENORA_VALIDATION_ATTEMPTS_MAX": "1"}
    with pausing_worker(settings, **limits) as worker:
        child = child_of(worker)
        worker.kill()
        worker.wait()
        wait_until(lambda: is_over(child), what="the child's end with its worker")
    assert tenant.http.get(path).json()["status"] == "validating"
    with running_worker(settings, **limits):
        revision = decided(tenant, path)
    (problem,) = revision["report"]["problems"]
    assert (revision["status"], problem["code"]) == ("rejected", "validation_failed")
    assert "cut short 1 times" in problem["message"]
    assert problem["message"].endswith("contact the operator")
    assert attempts(engine) == 1
    never_ready(engine, redis)


def test_an_upload_whose_worker_is_killed_once_still_becomes_ready(path, settings, engine):
    tenant, path = path
    with pausing_worker(settings, TENORA_VALIDATION_LEASE_S="1") as worker:
        child = child_of(worker)
        worker.kill()
        wait_until(lambda: is_over(child), what="the child's end with its worker")
    with running_worker(settings):
        assert decided(tenant, path)["status"] == "ready"
    assert attempts(engine) == 2


def attempts(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return connection.exec_driver_sql("SELECT attempts FROM revisions").scalar_one()
