"""One request's view of the simulated account: the clock, objects, lists and events. Knows no operation of its own.

Ids look like Stripe's; an object of a customer with a test clock is created at that clock's time.
"""

import secrets
import string
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import dropwhile, islice
from typing import Any, Final, TypeVar

import msgspec

from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.parameters import ListParameters
from tenora.stripe_simulator.store import SimulatorStore

Object = dict[str, Any]
_Result = TypeVar("_Result")
API_VERSION: Final = "2026-10-28.endive"  # of the SDK, which a test compares
_PREFIXES: Final = {
    "billing_portal.session": "bps",
    "charge": "ch",
    "checkout.session": "cs_test",
    "customer": "cus",
    "dispute": "du",
    "event": "evt",
    "payment_intent": "pi",
    "payment_method": "pm",
    "refund": "re",
    "setup_intent": "seti",
    "test_helpers.test_clock": "clock",
}
_ALPHABET: Final = string.ascii_letters + string.digits


class Simulation:
    """State and clock for one request, or for one look at what has become due."""

    def __init__(
        self, store: SimulatorStore, base_url: str, request_id: str | None = None, key: str | None = None
    ) -> None:
        self.store = store
        self.base_url = base_url
        self._request = {"id": request_id, "idempotency_key": key}

    def now(self, customer: str | None = None) -> int:
        """Unix seconds: of the customer's test clock, else of the simulator's own clock."""
        owner = self.store.load(customer) if customer else None
        clock = self.store.load(owner["test_clock"]) if owner and owner.get("test_clock") else None
        if clock is not None:
            return int(clock["frozen_time"])
        return int(time.time()) + int(self.store.setting("clock_offset_s", 0))

    def create(
        self, kind: str, fields: Mapping[str, Any], hidden: Mapping[str, Any] | None = None, *, event: str | None = None
    ) -> Object:
        """Store a new object, dated by its customer's clock, and record its event."""
        new_id = f"{_PREFIXES[kind]}_" + "".join(secrets.choice(_ALPHABET) for _ in range(24))
        body = {"id": new_id, "object": kind, "created": self.now(fields.get("customer")), "livemode": False, **fields}
        if kind == "refund":
            del body["livemode"]
        self.store.add(body, hidden or {})
        if event is not None:
            self.emit(event, body)
        return body

    def get(self, kind: str, object_id: str, param: str | None = None, *, or_deleted: bool = False) -> Object:
        """An object that must exist: ``param`` names it, or the path. Raises ApiError ``resource_missing``."""
        found = self.store.load(object_id)
        if found is None or found["object"] != kind or (found.get("deleted") and not or_deleted):
            raise ApiError(
                f"No such {kind.replace('_', ' ')}: '{object_id}'",
                status=400 if param else 404,
                code="resource_missing",
                param=param or "id",
            )
        return found

    def save(self, body: Object, event: str | None = None) -> Object:
        """Store a changed object, and record its event."""
        self.store.save(body)
        if event is not None:
            self.emit(event, body)
        return body

    def run(self, work: Callable[["Simulation"], _Result]) -> _Result:
        """Work in one transaction, which a refusal that leaves traces commits, too. Raises ApiError."""
        with self.store.transaction():
            try:
                return work(self)
            except ApiError as error:
                if not error.keeps_changes:
                    raise
                refused = error
        raise refused

    def page(
        self, kind: str, url: str, given: ListParameters, where: Callable[[Object], bool] = lambda _: True
    ) -> Object:
        """One page of a list, newest first, filtered by the parameters that not every list has."""
        filters = msgspec.structs.asdict(given).items()
        equal = {name: value for name, value in filters if name not in ListParameters.__struct_fields__ and value}
        span = given.created
        rows: Iterator[Object] = (
            row for row in self.store.select(kind, **equal) if span.gte <= row["created"] <= span.lte and where(row)
        )
        if given.starting_after is not None:
            self.get(kind, given.starting_after, "starting_after", or_deleted=True)
            rows = islice(dropwhile(lambda row: row["id"] != given.starting_after, rows), 1, None)
        found = list(islice(rows, given.limit + 1))
        return {"object": "list", "data": found[: given.limit], "has_more": len(found) > given.limit, "url": url}

    def emit(self, kind: str, subject: Object) -> None:
        """Record an event with a copy of its subject, and its deliveries to the listener."""
        mode, listener = self.store.setting("delivery", {}), self.store.setting("listener", None)
        copies = mode.get("copies", 1) if listener and kind in (listener["types"] or (kind,)) else 0
        event = self.create(
            "event",
            {
                "type": kind,
                "api_version": API_VERSION,
                "created": self.now(subject.get("customer")),
                "data": {"object": subject},
                "pending_webhooks": copies,
                "request": self._request,
            },
        )
        for _ in range(copies):
            wanted = "INSERT INTO deliveries (event, due, attempts) VALUES (?, ?, 0)"
            self.store.sql.execute(wanted, (event["id"], time.time()))
