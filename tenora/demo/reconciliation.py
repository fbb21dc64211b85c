"""Compares what was counted, as an operator does: tokens of engines with the ledger after the calls, and everything,
payments included, at the end of the demo.
"""

import os
import re
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from tenora.demo.control import ControlPlane
from tenora.demo.tenants import Tenant, usage_by_adapter

WAIT_S: Final = 30
_PAUSE_S: Final = 2
_DIFFERENCES: Final = re.compile(r" in (\d+) differences$", re.MULTILINE)


class CountMismatchError(RuntimeError):
    """Engine, ledger, invoices and payments do not say the same."""


class Ledger(NamedTuple):
    """What the tenants used: the tokens that engines counted, and the usage of each tenant by adapter."""

    engine_tokens: int
    usage: dict[str, list[dict[str, Any]]]


class Reconciled(NamedTuple):
    """How many differences nothing explains, and what the command printed."""

    differences: int
    output: str


def wait_for_ledger(admin: ControlPlane, tenants: tuple[Tenant, ...]) -> Ledger:
    """The tenants' usage, once the ledger has all tokens that engines counted. Raises CountMismatchError after
    ``WAIT_S``.
    """
    deadline = time.monotonic() + WAIT_S
    ids = {tenant.id for tenant in tenants}
    while True:
        found = admin.get("/api/v1/admin/reconciliation")
        engine_tokens = sum(row["engine_tokens"] for row in found["per_tenant"] if row["tenant_id"] in ids)
        end = datetime.now(UTC) + timedelta(minutes=1)
        start = end - timedelta(hours=12)
        usage = {tenant.id: usage_by_adapter(tenant, start.isoformat(), end.isoformat()) for tenant in tenants}
        ledger_tokens = sum(row["input_tokens"] + row["output_tokens"] for rows in usage.values() for row in rows)
        if engine_tokens == ledger_tokens and not found["unprocessed_events"]:
            return Ledger(engine_tokens, usage)
        if time.monotonic() > deadline:
            raise CountMismatchError(f"after {WAIT_S} s the engine has {engine_tokens}, the ledger {ledger_tokens}")
        time.sleep(0.2)


def reconcile(status: dict[str, Any], *, wait_s: float = WAIT_S) -> Reconciled:
    """Run full reconciliations until one finds no difference, for at most ``wait_s``: engines and the payment provider
    report what ended a moment ago within seconds. Raises RuntimeError when the command fails.
    """
    deadline = time.monotonic() + wait_s
    while True:
        found = _run(status)
        if found.differences == 0 or time.monotonic() > deadline:
            return found
        time.sleep(_PAUSE_S)


def _run(status: dict[str, Any]) -> Reconciled:
    environment = os.environ | {
        "TENORA_POSTGRES_DSN": status["postgres_dsn"],
        "TENORA_REDIS_URL": status["redis_url"],
        "TENORA_BILLING_RECONCILE_SETTLE_S": "0",  # nothing runs now
    }
    done = subprocess.run(
        [sys.executable, "-m", "billing", "reconcile", "--full"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    counted = _DIFFERENCES.search(done.stdout)
    if counted is None:
        raise RuntimeError(f"`python -m billing reconcile --full` ended with {done.returncode}: {done.stderr}")
    return Reconciled(int(counted[1]), done.stdout)
