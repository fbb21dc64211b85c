"""The worker is killed while it validates an upload. What becomes of an upload whose validating child alone dies or
hangs, the tests of ``adapters.sandbox.parent`` show.
"""

import contextlib
import subprocess

import psutil
import pytest

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


@pytest.mark.parametrize(("attempts_max", "status"), [(1, "rejected"), (3, "ready")])
def test_an_upload_whose_worker_is_killed_is_validated_again_unless_it_was_the_last_attempt(
    path, settings, engine, redis, attempts_max, status
):
    tenant, path = path
    limits = {"TENORA_VALIDATION_LEASE_S": "1", "TENORA_VALIDATION_ATTEMPTS_MAX": str(attempts_max)}
    with pausing_worker(settings, **limits) as worker:
        child = child_of(worker)
        worker.kill()
        worker.wait()
        wait_until(lambda: is_over(child), what="the child's end with its worker")
    assert tenant.http.get(path).json()["status"] == "validating"
    with running_worker(settings, **limits):
        revision = decided(tenant, path)
    assert revision["status"] == status
    with engine.connect() as connection:
        attempts = connection.exec_driver_sql("SELECT attempts FROM revisions").scalar_one()
        actions = set(connection.exec_driver_sql("SELECT action FROM audit_events").scalars())
    assert attempts == (1 if status == "rejected" else 2)
    if status == "rejected":
        (problem,) = revision["report"]["problems"]
        assert problem["code"] == "validation_failed"
        assert "cut short 1 times" in problem["message"]
        assert problem["message"].endswith("contact the operator")
        assert (revision["sha256"], "revision.accepted" in actions) == (None, False)
        assert redis.hgetall(redis_keys.snapshot("adapters")) == {}
