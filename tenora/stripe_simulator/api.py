"""The life of one request to ``/v1/…``: key, fault, parameters, idempotency, one transaction, answer.

Nothing waits between reading the state and committing, so that requests take effect one after the other.
"""

import asyncio
import base64
import binascii
import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from tenora.stripe_simulator import faults, idempotency
from tenora.stripe_simulator.annotations import API_VERSION
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.faults import Fault
from tenora.stripe_simulator.form import read_form
from tenora.stripe_simulator.operations import Operation
from tenora.stripe_simulator.simulation import Object, Simulation
from tenora.stripe_simulator.store import SimulatorStore

_KEY: Final = re.compile(r"(sk|rk)_test_[A-Za-z0-9_]{1,255}")
_log = structlog.get_logger()


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

    def __init__(self, store: SimulatorStore, operations: tuple[Operation, ...], base_url: str) -> None:
        self._store = store
        self._operations = operations
        self._base_url = base_url

    async def answer(self, request: ApiRequest) -> StripeAnswer:
        """Never raises: what goes wrong is an answer with Stripe's error object."""
        try:
            self._authenticate(request.headers)
            fault = faults.next_fault(self._store, request.method, request.path)
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

    def _authenticate(self, headers: Mapping[str, str]) -> None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            with contextlib.suppress(binascii.Error):  # what is no base64 is no key either
                given = base64.b64decode(given).decode(errors="replace").partition(":")[0]
        if not given:
            raise ApiError("You did not provide an API key.", status=401)
        if "_live_" in given[:8]:
            raise ApiError(
                "This is Tenora's Stripe simulator, which moves no real money, and a live key was sent to it. Use any"
                " key that begins with sk_test_, and roll the live key: it has left your systems.",
                status=401,
                code="live_key_with_simulator",
            )
        if not _KEY.fullmatch(given):
            raise ApiError(f"Invalid API Key provided: {given[:8]}****", status=401)
        version = headers.get("stripe-version", API_VERSION)
        if version != API_VERSION:
            raise ApiError(f"The Stripe simulator implements API version {API_VERSION} only; {version[:40]} was sent.")

    def _execute(self, request: ApiRequest, fault: Fault | None) -> StripeAnswer:
        operation, ids = self._find(request)
        if fault is not None and fault.kind == "rate_limit":
            raise ApiError("Too many requests hit the API too quickly.", status=429, code="rate_limit")
        tree, pairs = read_form(request.encoded)
        key = request.headers.get("idempotency-key") if request.method == "POST" else None
        sim = Simulation(self._store, self._base_url, request.request_id, key)
        now = sim.now()
        print_ = idempotency.fingerprint(request.method, request.path, pairs)
        headers = {"Idempotency-Key": key} if key else {}
        if key:
            kept = idempotency.kept_answer(self._store, key, print_, request.path, now)
            if kept is not None:
                return StripeAnswer(*kept, {**headers, "Idempotent-Replayed": "true", "Stripe-Should-Retry": "false"})
        values = operation.read(tree)

        def keep(answer: StripeAnswer) -> StripeAnswer:
            if key:
                idempotency.keep(self._store, key, print_, request.path, now, (answer.status, answer.body))
                answer.headers |= headers
            return answer

        return self._run(lambda: operation.run(sim, values, *ids), fault, keep)

    def _find(self, request: ApiRequest) -> tuple[Operation, tuple[str, ...]]:
        for operation in self._operations:
            ids = operation.match(request.method, request.path)
            if ids is not None:
                return operation, ids
        raise ApiError(
            f"Unrecognized request URL ({request.method}: {request.path[:200]}). The Stripe simulator implements only"
            " the calls that Tenora makes.",
            status=404,
        )

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


def _failure(why: str) -> StripeAnswer:
    error = ApiError(f"An unknown error occurred ({why}).", status=500, kind="api_error")
    return StripeAnswer(error.status, error.body, {"Stripe-Should-Retry": "false"})
