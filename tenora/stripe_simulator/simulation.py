"""One request's view of the simulated account: the clock, objects, lists and events. Knows no operation of its own.

Ids look like Stripe's; an object of a customer with a test clock is created at that clock's time.
"""

import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from tenora.stripe_simulator.annotations import API_VERSION
from tenora.stripe_simulator.errors import ApiError, missing
from tenora.stripe_simulator.resources import complete
from tenora.stripe_simulator.store import SimulatorStore

Object = dict[str, Any]
EVENTS_KEPT_S: Final = 30 * 86_400
_LIMIT_DEFAULT: Final = 10
_LIMIT_MAX: Final = 100
_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


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
        clock = self._clock_of(customer)
        if clock is not None:
            return int(clock["frozen_time"])
        return int(time.time()) + int(self.store.setting("clock_offset_s", 0))

    def _clock_of(self, customer: str | None) -> Object | None:
        owner = self.store.load(customer) if customer else None
        return self.store.load(owner["test_clock"]) if owner and owner.get("test_clock") else None

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_" + "".join(secrets.choice(_ALPHABET) for _ in range(24))

    def create(
        self, kind: str, prefix: str, fields: Mapping[str, Any], *, customer: str | None = None, **hidden: Any
    ) -> Object:
        """Store a new object. The caller emits its event."""
        started = {"id": self.new_id(prefix), "created": self.now(customer), "livemode": False}
        if kind in ("invoiceitem", "refund", "credit_note_line_item"):  # shapes without one of these fields
            del started["created" if kind != "refund" else "livemode"]
        body = complete(kind, started | dict(fields))
        self.store.add(body, hidden)
        return body

    def get(self, kind: str, object_id: str | None, param: str | None = None) -> Object:
        """An object that must exist. Raises ApiError ``resource_missing``."""
        found = self.store.load(object_id) if object_id else None
        if found is None or found["object"] != kind or (found.get("deleted") and param):
            raise missing(kind, object_id or "", param)
        return found

    def save(self, body: Object) -> Object:
        self.store.save(body)
        return body

    def page(self, kind: str, url: str, given: Mapping[str, Any], *, found: Iterable[Object] | None = None) -> Object:
        """One page of a list, newest first, filtered by the parameters that name a field."""
        limit = given.get("limit", _LIMIT_DEFAULT)
        if not 1 <= limit <= _LIMIT_MAX:
            raise ApiError(f"Invalid limit: must be between 1 and {_LIMIT_MAX}", param="limit")
        skipped = {"limit", "starting_after", "ending_before", "created", "types"}
        fields = {name: value for name, value in given.items() if name not in skipped}
        indexed = {name: fields[name] for name in ("customer", "invoice", "status") if name in fields}
        rows = iter(self.store.iterate(kind, **indexed) if found is None else found)
        rows = (row for row in rows if all(row.get(name) == value for name, value in fields.items()))
        rows = (row for row in rows if _in_range(row.get("created", row.get("date")), given.get("created")))
        if "ending_before" in given:
            before = list(_until(rows, kind, given["ending_before"], "ending_before"))
            data, more = before[-limit:], len(before) > limit
        else:
            if "starting_after" in given:
                deque(_until(rows, kind, given["starting_after"], "starting_after"), maxlen=0)
            after = list(islice(rows, limit + 1))
            data, more = after[:limit], len(after) > limit
        return {"object": "list", "data": data, "has_more": more, "url": url}

    def emit(self, kind: str, subject: Object, previous: Mapping[str, Any] | None = None) -> None:
        """Record an event with a copy of its subject, and its deliveries to the listener."""
        mode, listener = self.store.setting("delivery", {}), self.store.setting("listener", None)
        copies = mode.get("copies", 1) if listener and kind in (listener["types"] or (kind,)) else 0
        data = {"object": subject} | ({"previous_attributes": dict(previous)} if previous else {})
        customer = subject.get("customer")
        body = {
            "type": kind,
            "api_version": API_VERSION,
            "data": data,
            "pending_webhooks": copies,
            "request": self._request,
        }
        event = self.create("event", "evt", body, customer=customer if isinstance(customer, str) else None)
        for copy in range(1, copies + 1):
            due = time.time() + copy * mode.get("delay_ms", 0) / 1000
            self.store.sql.execute("INSERT INTO deliveries (event, due) VALUES (?, ?)", (event["id"], due))


def _until(rows: Iterator[Object], kind: str, object_id: str, param: str) -> Iterator[Object]:
    """The rows before the one with this id, which is consumed. Raises ApiError if there is none."""
    for row in rows:
        if row["id"] == object_id:
            return
        yield row
    raise missing(kind, object_id, param)


def _in_range(created: int | None, wanted: Any) -> bool:
    if wanted is None or created is None:
        return True
    if isinstance(wanted, int):
        return created == wanted
    return bool(
        created > wanted.get("gt", -1)
        and created >= wanted.get("gte", 0)
        and created < wanted.get("lt", 1 << 62)
        and created <= wanted.get("lte", 1 << 62)
    )


def merged(old: dict[str, str] | None, new: dict[str, str] | str) -> dict[str, str]:
    """Metadata after an update: given keys replace, an empty value removes, an empty string removes all."""
    if not isinstance(new, dict):
        return {}
    return {key: value for key, value in {**(old or {}), **new}.items() if value != ""}
