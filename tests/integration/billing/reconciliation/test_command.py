"""``python -m billing reconcile``, as an operator runs it."""

import os
import subprocess

import pytest

from tests.fixtures import fork_server


@pytest.fixture
def reconcile(postgres_settings, redis_settings):
    def run(*arguments: str) -> subprocess.CompletedProcess:
        environment = os.environ | {
            "TENORA_POSTGRES_DSN": postgres_settings.postgres_dsn,
            "TENORA_REDIS_URL": redis_settings.redis_url,
            "TENORA_BILLING_RECONCILE_SETTLE_S": "0",
        }
        return fork_server.run("billing", "reconcile", *arguments, env=environment)

    return run


def test_it_exits_with_1_where_something_is_not_explained_and_with_0_otherwise(stage, reconciled, reconcile):
    tenant = stage.tenant()
    stage.bill(reconciled.event(tenant))
    reconciled.report(tenant_id=tenant, requests=1, prompt_tokens=100, output_tokens=21, kv_page_ms=1_601)
    done = reconcile()
    assert done.returncode == 1, done.stderr
    assert "unexplained: 1 tokens, 0 page-milliseconds, 0 nanodollars in 1 differences" in done.stdout
    assert (
        f"engine_ledger rep_1: output tokens {tenant} smollm2-135m-instruct {reconciled.hour.isoformat()}"
        in done.stdout
    )
    late = reconciled.event(tenant, input_tokens=0, cached_tokens=0, output_tokens=1, kv_page_ms=0)
    stage.bill(late)
    reconciled.report(tenant_id=tenant, requests=2, prompt_tokens=100, output_tokens=21, kv_page_ms=1_601)
    for arguments in ((), ("--full",)):
        done = reconcile(*arguments)
        assert (done.returncode, "in 0 differences" in done.stdout) == (0, True), done.stdout + done.stderr
    assert [each.mode for each in reconciled.listed()] == ["full", "changed", "full"]
