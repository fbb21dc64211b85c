"""The list of events, and the task that posts them, signed, to one listener on loopback.

Deliveries are stored before they are sent, so that none is lost at a restart. They can be doubled, delayed, reordered.
"""

import asyncio
import hashlib
import hmac
import json
import random
import time
from collections.abc import Sequence
from typing import Annotated, Final
from urllib.parse import urlsplit

import httpx
import msgspec
import structlog
from msgspec import Meta

from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.parameters import ListParameters, Text
from tenora.stripe_simulator.simulation import Object, Simulation
from tenora.stripe_simulator.store import SimulatorStore

EVENTS_KEPT_S: Final = 30 * 86_400
ATTEMPTS_MAX: Final = 16
_TIMEOUT_S: Final = 10
_LOOK_S: Final = 0.1
_IDLE_S: Final = 1.0
_BACKOFF_S_MAX: Final = 3_600
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_log = structlog.get_logger()


class ListEvents(ListParameters, frozen=True):
    types: Annotated[list[Text], Meta(max_length=20)] | None = None


def listen(store: SimulatorStore, url: str, secrets: Sequence[str], types: Sequence[str] = ()) -> None:
    """Post events to this address from now on: all, or those of these types, each signed with all secrets."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or parts.hostname not in _LOOPBACK:
        raise ApiError(
            "Invalid URL: the Stripe simulator posts to loopback addresses only, such as"
            " http://127.0.0.1:8081/webhooks/stripe.",
            code="url_invalid",
            param="url",
        )
    store.set("listener", {"url": url, "secrets": list(secrets), "types": list(types)})


def list_events(sim: Simulation, given: ListEvents) -> Object:
    """Events of the last 30 days, the newest first."""
    oldest, types = sim.now() - EVENTS_KEPT_S, given.types
    plain = msgspec.structs.replace(given, types=None)  # no field of events
    return sim.page(
        "event", "/v1/events", plain, lambda event: event["created"] >= oldest and (not types or event["type"] in types)
    )


def signature_header(body: str, secrets: Sequence[str], timestamp: int) -> str:
    """``Stripe-Signature``: the time and one ``v1`` for each secret (https://docs.stripe.com/webhooks/signature)."""
    signed = f"{timestamp}.{body}".encode()
    digests = [hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() for secret in secrets]
    return ",".join([f"t={timestamp}", *(f"v1={digest}" for digest in digests)])


class EventDelivery:
    """Posts due deliveries one after the other, and tries failed ones again later."""

    def __init__(self, store: SimulatorStore) -> None:
        self._store = store
        self._sending = asyncio.Lock()
        self._client = httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, follow_redirects=False)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                seen = self._store.sql.total_changes
                if self._store.setting("delivery", {}).get("paused") or not await self.send_due():
                    await self._wait_for_change(seen)
        finally:
            await self._client.aclose()

    async def _wait_for_change(self, seen: int) -> None:
        """Until a row of the store changes, at most for a second: a delivery that failed may be due."""
        until = time.monotonic() + _IDLE_S
        while self._store.sql.total_changes == seen and time.monotonic() < until:  # noqa: ASYNC110 - SQLite has no event
            await asyncio.sleep(_LOOK_S)

    async def send_due(self, *, all_waiting: bool = False) -> int:
        """Post what is due, or all that waits, in the order that is set. Returns the number of accepted posts."""
        async with self._sending:
            until = float("inf") if all_waiting else time.time()
            rows = self._store.sql.execute(
                "SELECT number, event, attempts FROM deliveries WHERE due <= ? ORDER BY number LIMIT 1000",
                (until,),
            ).fetchall()
            order = self._store.setting("delivery", {}).get("order", "created")
            if order == "reversed":
                rows.reverse()
            elif order == "shuffled":
                random.shuffle(rows)
            return sum([await self._send(*row) for row in rows])

    async def _send(self, number: int, event_id: str, attempts: int) -> bool:
        event, listener = self._store.load(event_id), self._store.setting("listener", None)
        if event is None or listener is None:
            self._forget(number)
            return False
        body = json.dumps(event, indent=2)
        signature = signature_header(body, listener["secrets"], int(time.time()))
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "Stripe-Signature": signature,
            "Tenora-Stripe-Simulator": "1",
            "User-Agent": "Stripe/1.0 (simulated)",
        }
        try:
            answer = await self._client.post(listener["url"], content=body, headers=headers)
            accepted = answer.is_success
            status: int | str = answer.status_code
        except httpx.HTTPError as error:
            accepted, status = False, type(error).__name__
        _log.info("webhook posted", event_id=event_id, type=event["type"], status=status, attempts=attempts + 1)
        if accepted or attempts + 1 >= ATTEMPTS_MAX:
            self._forget(number)
        else:
            due = time.time() + min(2**attempts, _BACKOFF_S_MAX)
            self._store.sql.execute(
                "UPDATE deliveries SET attempts = attempts + 1, due = ? WHERE number = ?", (due, number)
            )
        return accepted

    def _forget(self, number: int) -> None:
        self._store.sql.execute("DELETE FROM deliveries WHERE number = ?", (number,))
