"""Reconciles everything at the end of the demo, as an operator does: engines, ledger, invoices and payments."""

import os
import re
import subprocess
import sys
import time
from typing import Any, Final, NamedTuple

WAIT_S: Final = 30
_PAUSE_S: Final = 2
_DIFFERENCES: Final = re.compile(r" in (\d+) differences$", re.MULTILINE)


class Reconciled(NamedTuple):
    """How many differences nothing explains, and what the command printed."""

    differences: int
    output: str


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
