"""Webhook endpoints, the list of events, and the task that posts signed events to loopback addresses.

Deliveries are stored before they are sent, so that none is lost at a restart. They can be doubled, delayed, reordered.
"""

import asyncio
import hashlib
import hmac
import json
import random
import time
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import structlog

from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.simulation import EVENTS_KEPT_S, Object, Simulation, merged
from tenora.stripe_simulator.store import SimulatorStore

ENDPOINTS_MAX: Final = 16
ATTEMPTS_MAX: Final = 16
_TYPES_MAX: Final = 20  # of one list
_TIMEOUT_S: Final = 10
_IDLE_S: Final = 0.05
_BACKOFF_S_MAX: Final = 3_600
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_log = structlog.get_logger()


def create(sim: Simulation, given: dict[str, Any]) -> Object:
    _check_url(given["url"])
    if len(sim.store.select("webhook_endpoint")) >= ENDPOINTS_MAX:
        raise ApiError(f"You have reached the maximum of {ENDPOINTS_MAX} test webhook endpoints.")
    fields = {
        "api_version": given.get("api_version"),
        "description": given.get("description"),
        "enabled_events": given["enabled_events"],
        "metadata": given.get("metadata") or {},
        "status": "enabled",
        "url": given["url"],
    }
    secret = sim.new_id("whsec")
    endpoint = sim.create("webhook_endpoint", "we", fields, secrets=[[secret, None]])
    return {**endpoint, "secret": secret}  # shown once


def listen_at(sim: Simulation, url: str, secret: str) -> Object:
    """An endpoint for all events with a secret that both sides know, instead of the one with the same address."""
    for each in sim.store.select("webhook_endpoint", url=url):
        delete(sim, {}, each["id"])
    endpoint = create(sim, {"url": url, "enabled_events": ["*"], "description": "registered at start"})
    sim.store.hide(endpoint["id"], secrets=[[secret, None]])
    return endpoint


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or parts.hostname not in _LOOPBACK:
        raise ApiError(
            "Invalid URL: the Stripe simulator posts to loopback addresses only, such as"
            " http://127.0.0.1:8081/webhooks/stripe.",
            code="url_invalid",
            param="url",
        )


def update(sim: Simulation, given: dict[str, Any], endpoint_id: str) -> Object:
    endpoint = sim.get("webhook_endpoint", endpoint_id)
    if "url" in given:
        _check_url(given["url"])
    if "metadata" in given:
        endpoint["metadata"] = merged(endpoint["metadata"], given["metadata"])
    if "disabled" in given:
        endpoint["status"] = "disabled" if given["disabled"] else "enabled"
    endpoint |= {name: given[name] for name in ("url", "enabled_events", "description") if name in given}
    return sim.save(endpoint)


def delete(sim: Simulation, given: dict[str, Any], endpoint_id: str) -> Object:
    sim.get("webhook_endpoint", endpoint_id)
    sim.store.remove(endpoint_id)
    sim.store.sql.execute("DELETE FROM deliveries WHERE endpoint = ?", (endpoint_id,))
    return {"id": endpoint_id, "object": "webhook_endpoint", "deleted": True}


def roll_secret(sim: Simulation, endpoint_id: str, overlap_s: int) -> str:
    """A new secret; until the overlap ends, events carry a signature of each."""
    sim.get("webhook_endpoint", endpoint_id)
    secrets = _valid_secrets(sim.store, endpoint_id)
    fresh = sim.new_id("whsec")
    ending = [[secret, time.time() + overlap_s] for secret in secrets]
    sim.store.hide(endpoint_id, secrets=[[fresh, None], *ending])
    return fresh


def _valid_secrets(store: SimulatorStore, endpoint_id: str) -> list[str]:
    stored = store.hidden(endpoint_id)["secrets"]
    return [secret for secret, end in stored if end is None or end > time.time()]


def retrieve_event(sim: Simulation, given: dict[str, Any], event_id: str) -> Object:
    event = sim.get("event", event_id)
    if event["created"] < sim.now() - EVENTS_KEPT_S:
        raise ApiError(f"No such event: '{event_id}'", status=404, code="resource_missing", param="id")
    return event


def list_events(sim: Simulation, given: dict[str, Any]) -> Object:
    """Events of the last 30 days, the newest first."""
    if "type" in given and "types" in given:
        raise ApiError("You may only specify one of these parameters: type, types.", param="types")
    if len(given.get("types", ())) > _TYPES_MAX:
        raise ApiError(f"Array must have at most {_TYPES_MAX} elements.", param="types")
    oldest = sim.now() - EVENTS_KEPT_S
    found = (each for each in sim.store.iterate("event") if each["created"] >= oldest)
    if "types" in given:
        found = (each for each in found if each["type"] in given["types"])
    return sim.page("event", "/v1/events", given, found=found)


def signature_header(body: str, secrets: list[str], timestamp: int) -> str:
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
                if self._store.setting("delivery", {}).get("paused") or not await self.send_due():
                    await asyncio.sleep(_IDLE_S)
        finally:
            await self._client.aclose()

    async def send_due(self, *, all_waiting: bool = False) -> int:
        """Post what is due, or all that waits, in the order that is set. Returns the number of accepted posts."""
        async with self._sending:
            until = float("inf") if all_waiting else time.time()
            rows = self._store.sql.execute(
                "SELECT number, event, endpoint, attempts FROM deliveries WHERE due <= ? ORDER BY number LIMIT 1000",
                (until,),
            ).fetchall()
            order = self._store.setting("delivery", {}).get("order", "created")
            if order == "reversed":
                rows.reverse()
            elif order == "shuffled":
                random.shuffle(rows)
            return sum([await self._send(*row) for row in rows])

    async def _send(self, number: int, event_id: str, endpoint_id: str, attempts: int) -> bool:
        event, endpoint = self._store.load(event_id), self._store.load(endpoint_id)
        if event is None or endpoint is None or endpoint["status"] != "enabled":
            self._forget(number)
            return False
        body = json.dumps(event, indent=2)
        signature = signature_header(body, _valid_secrets(self._store, endpoint_id), int(time.time()))
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "Stripe-Signature": signature,
            "Tenora-Stripe-Simulator": "1",
            "User-Agent": "Stripe/1.0 (simulated)",
        }
        try:
            answer = await self._client.post(endpoint["url"], content=body, headers=headers)
            accepted = answer.is_success
            status: int | str = answer.status_code
        except httpx.HTTPError as error:
            accepted, status = False, type(error).__name__
        _log.info("webhook posted", event_id=event_id, type=event["type"], status=status, attempts=attempts + 1)
        if accepted:
            event["pending_webhooks"] = max(0, event["pending_webhooks"] - 1)
            self._store.save(event)
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
