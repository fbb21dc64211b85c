"""The life of one request to ``/v1/…``: key, fault, parameters, idempotency, one transaction, answer.

Nothing waits between reading the state and committing, so that requests take effect one after the other. An answer is
kept for 24 hours of the simulator's clock once execution began, a 500 included; refused parameters are not kept.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

import structlog
from msgspec import Meta

from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.operations import OPERATIONS, find
from tenora.stripe_simulator.parameters import Parameters, read_form, read_parameters
from tenora.stripe_simulator.simulation import API_VERSION, Object, Simulation
from tenora.stripe_simulator.store import SimulatorStore

_API_KEY: Final = re.compile(r"(sk|rk)_test_[A-Za-z0-9_]{1,255}")
_KEY_LENGTH_MAX: Final = 255
_ANSWERS_KEPT_S: Final = 24 * 3_600
FAULTS_MAX: Final = 100
_log = structlog.get_logger()


class Fault(Parameters, frozen=True):
    """The next requests that match are limited, fail or hang: ``before`` means that nothing happened, ``after`` that
    everything did and only the answer is wrong or late.
    """

    kind: Literal["rate_limit", "error_before", "error_after", "timeout_before", "timeout_after"]
    method: Literal["GET", "POST", "DELETE", "*"] = "POST"
    path: Annotated[str, Meta(pattern="^/v1/")] = "/v1/"  # a prefix
    times: Annotated[int, Meta(ge=1, le=10_000)] = 1
    seconds: Annotated[float, Meta(ge=0, le=300)] = 5  # how long a timeout hangs


@dataclass(frozen=True)
class ApiRequest:
    method: str
    path: str
    encoded: str  # the form: of the body for a POST, of the query otherwise
    headers: Mapping[str, str]
    request_id: str


@dataclass
class StripeAnswer:
    status: int
    body: Object
    headers: dict[str, str] = field(default_factory=dict)


class StripeApi:
    """Answers requests as Stripe would."""

    def __init__(self, store: SimulatorStore, base_url: str) -> None:
        self._store = store
        self._base_url = base_url

    async def answer(self, request: ApiRequest) -> StripeAnswer:
        """Never raises: what goes wrong is an answer with Stripe's error object."""
        try:
            _authenticate(request.headers)
            fault = self._next_fault(request)
            if fault is not None and fault.kind == "timeout_before":
                await asyncio.sleep(fault.seconds)
                return _failure("simulated timeout before execution")
            answer = self._execute(request, fault)
            if fault is not None and fault.kind == "timeout_after":
                await asyncio.sleep(fault.seconds)
        except ApiError as error:
            answer = StripeAnswer(error.status, error.body)
        answer.headers |= {"Request-Id": request.request_id, "Stripe-Version": API_VERSION}
        return answer

    def _next_fault(self, request: ApiRequest) -> Fault | None:
        """The oldest planned fault for this request, used up once."""
        planned = self._store.setting("faults", [])
        for each in planned:
            if each["method"] in ("*", request.method) and request.path.startswith(each["path"]):
                found = read_parameters(each, Fault)
                each["times"] -= 1
                self._store.set("faults", [one for one in planned if one["times"] > 0])
                return found
        return None

    def _execute(self, request: ApiRequest, fault: Fault | None) -> StripeAnswer:
        operation, ids = find(OPERATIONS, request.method, request.path)
        if fault is not None and fault.kind == "rate_limit":
            raise ApiError("Too many requests hit the API too quickly.", status=429, code="rate_limit")
        tree = read_form(request.encoded)
        key = request.headers.get("idempotency-key") if request.method == "POST" else None
        sim = Simulation(self._store, self._base_url, request.request_id, key)
        same = [request.path, *sorted(request.encoded.split("&"))]
        print_ = hashlib.sha256("\n".join(same).encode()).hexdigest()
        kept = None if key is None else self._kept(key, print_, sim.now())
        if kept is not None:
            return kept
        values = read_parameters(tree, operation.parameters)

        def keep(answer: StripeAnswer) -> StripeAnswer:
            """In the transaction of the changes that the answer reports."""
            if key is not None:
                self._store.sql.execute(
                    "REPLACE INTO answers (key, fingerprint, status, body, begun) VALUES (?, ?, ?, ?, ?)",
                    (key, print_, answer.status, json.dumps(answer.body), sim.now()),
                )
                answer.headers["Idempotency-Key"] = key
            return answer

        return self._run(lambda: operation.run(sim, values, *ids), fault, keep)

    def _kept(self, key: str, print_: str, now: int) -> StripeAnswer | None:
        """The answer that the key already has. Raises ApiError ``idempotency_error`` if the request is another one."""
        if len(key) > _KEY_LENGTH_MAX:
            raise ApiError(f"Idempotency keys can be up to {_KEY_LENGTH_MAX} characters.", kind="idempotency_error")
        self._store.sql.execute("DELETE FROM answers WHERE begun <= ?", (now - _ANSWERS_KEPT_S,))
        row = self._store.sql.execute("SELECT fingerprint, status, body FROM answers WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        if row[0] != print_:
            raise ApiError(
                "Keys for idempotent requests can only be used with the same parameters they were first used with. Try"
                f" using a key other than '{key}' if you meant to execute a different request.",
                kind="idempotency_error",
            )
        headers = {"Idempotency-Key": key, "Idempotent-Replayed": "true", "Stripe-Should-Retry": "false"}
        return StripeAnswer(row[1], json.loads(row[2]), headers)

    def _run(
        self, work: Callable[[], Object], fault: Fault | None, keep: Callable[[StripeAnswer], StripeAnswer]
    ) -> StripeAnswer:
        """Execute in one transaction, which also keeps the answer. A refusal that leaves traces commits them."""
        kind = fault.kind if fault is not None else None
        if kind == "error_before":
            return keep(_failure("simulated failure before execution"))
        try:
            with self._store.transaction():
                try:
                    answer = StripeAnswer(200, work())
                except ApiError as error:
                    if not error.keeps_changes:
                        raise
                    answer = StripeAnswer(error.status, error.body)
                return keep(_failure("simulated failure after execution") if kind == "error_after" else answer)
        except ApiError as error:
            return keep(StripeAnswer(error.status, error.body))
        except Exception:  # noqa: BLE001 - Stripe answers 500 and keeps it, so that is what has to be simulated
            _log.exception("operation failed")
            return keep(_failure("the simulator failed; its log says why"))


def _authenticate(headers: Mapping[str, str]) -> None:
    given = headers.get("authorization", "").removeprefix("Bearer ")
    if not given:
        raise ApiError("You did not provide an API key.", status=401)
    if "_live_" in given[:8]:
        raise ApiError(
            "This is Tenora's Stripe simulator, which moves no real money, and a live key was sent to it. Use any key"
            " that begins with sk_test_, and roll the live key: it has left your systems.",
            status=401,
            code="live_key_with_simulator",
        )
    if not _API_KEY.fullmatch(given):
        raise ApiError(f"Invalid API Key provided: {given[:8]}****", status=401)
    version = headers.get("stripe-version", API_VERSION)
    if version != API_VERSION:
        raise ApiError(f"The Stripe simulator implements API version {API_VERSION} only; {version[:40]} was sent.")


def _failure(why: str) -> StripeAnswer:
    error = ApiError(f"An unknown error occurred ({why}).", status=500, kind="api_error")
    return StripeAnswer(error.status, error.body, {"Stripe-Should-Retry": "false"})
