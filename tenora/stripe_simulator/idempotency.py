"""Stripe's idempotency of v1: an answer is kept for 24 hours once execution began, a 500 included.

Refused parameters are not kept. After 24 hours of the simulator's clock a key is forgotten and would execute again.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.store import SimulatorStore

KEPT_S: Final = 24 * 3_600
KEY_MAX: Final = 255


def fingerprint(method: str, path: str, pairs: Sequence[tuple[str, str]]) -> str:
    """What must be equal for a repeated request."""
    return hashlib.sha256(json.dumps([method, path, sorted(pairs)]).encode()).hexdigest()


def kept_answer(store: SimulatorStore, key: str, print_: str, path: str, now: int) -> tuple[int, dict[str, Any]] | None:
    """The answer that the key already has. Raises ApiError ``idempotency_error`` if the request is another one."""
    if len(key) > KEY_MAX:
        raise ApiError(f"Idempotency keys can be up to {KEY_MAX} characters long.", kind="idempotency_error")
    store.sql.execute("DELETE FROM answers WHERE begun <= ?", (now - KEPT_S,))
    row = store.sql.execute("SELECT fingerprint, path, status, body FROM answers WHERE key = ?", (key,)).fetchone()
    if row is None:
        return None
    if row[0] != print_:
        same = "parameters" if row[1] == path else f"endpoint ('{row[1]}')"
        raise ApiError(
            f"Keys for idempotent requests can only be used with the same {same} they were first used with. Try using"
            f" a key other than '{key}' if you meant to execute a different request.",
            kind="idempotency_error",
        )
    return row[2], json.loads(row[3])


def keep(store: SimulatorStore, key: str, print_: str, path: str, now: int, answer: tuple[int, dict[str, Any]]) -> None:
    """Remember an answer under its key, in the transaction of the changes that it reports."""
    store.sql.execute(
        "REPLACE INTO answers (key, fingerprint, path, status, body, begun) VALUES (?, ?, ?, ?, ?, ?)",
        (key, print_, path, answer[0], json.dumps(answer[1]), now),
    )
