"""Faults on demand: the next requests that match are limited, fail before or after they take effect, or hang."""

from typing import Final, Literal

import msgspec

from tenora.stripe_simulator.store import SimulatorStore

FaultKind = Literal["rate_limit", "error_before", "error_after", "timeout_before", "timeout_after"]
FAULTS_MAX: Final = 100


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``before`` means that nothing happened, ``after`` that everything did and only the answer is wrong or late."""

    kind: FaultKind
    method: Literal["GET", "POST", "DELETE", "*"] = "POST"
    path: str = "/v1/"  # a prefix
    times: int = 1
    seconds: float = 5  # how long a timeout hangs


def plan(store: SimulatorStore, fault: Fault) -> None:
    if not (1 <= fault.times <= 10_000 and 0 <= fault.seconds <= 300 and fault.path.startswith("/v1/")):
        raise ValueError("times must be 1 to 10,000, seconds 0 to 300, and path must begin with /v1/")
    if store.sql.execute("SELECT count(*) FROM faults").fetchone()[0] >= FAULTS_MAX:
        raise ValueError(f"at most {FAULTS_MAX} faults can be planned; DELETE /_simulator/faults removes them")
    store.sql.execute(
        "INSERT INTO faults (kind, method, path, times, seconds) VALUES (?, ?, ?, ?, ?)",
        (fault.kind, fault.method, fault.path, fault.times, fault.seconds),
    )


def next_fault(store: SimulatorStore, method: str, path: str) -> Fault | None:
    """The oldest planned fault for this request, used up once."""
    rows = store.sql.execute("SELECT number, kind, method, path, times, seconds FROM faults ORDER BY number")
    for number, kind, wanted, prefix, times, seconds in rows.fetchall():
        if wanted in ("*", method) and path.startswith(prefix):
            store.sql.execute("UPDATE faults SET times = times - 1 WHERE number = ?", (number,))
            store.sql.execute("DELETE FROM faults WHERE times <= 0")
            return Fault(kind=kind, method=wanted, path=prefix, times=times, seconds=seconds)
    return None


def forget_all(store: SimulatorStore) -> None:
    store.sql.execute("DELETE FROM faults")
