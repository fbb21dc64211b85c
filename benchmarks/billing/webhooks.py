"""Posts Stripe's webhooks at a steady rate to a web process of the control plane, while a billing worker handles them.

The rate is an open loop: each answer is timed from the instant at which its webhook was due, also if earlier ones wait.
The objects that the events name are the Stripe simulator's, which runs on the same cores as all that it measures.
"""

import asyncio
import json
import multiprocessing
import os
import random
import secrets
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import sqlalchemy as sa
from pydantic import SecretStr

from adapters.object_store.s3 import Bucket
from benchmarks.load import quantile
from billing.payments import outbox
from billing.payments.event_handling import EventHandler
from billing.payments.operations import ChargeTopUp
from billing.payments.queue import PaymentQueues
from billing.payments.runner import Performer
from billing.payments.settings import PaymentSettings
from billing.stripe.client import API_VERSION, StripeAccount
from billing.stripe.settings import StripeSettings
from control_plane import database_roles
from control_plane.app import server
from control_plane.settings import ControlSettings, WebSettings
from core import db
from core.db import unit_of_work
from core.ids import new_id
from core.settings import PostgresSettings, RedisSettings, S3Settings
from tenora.stack.program import accepts_connections, free_port
from tenora.stripe_simulator.webhooks import signature_header
from tests.conftest import wait_until
from tests.fixtures.control_plane.api import control_settings
from tests.fixtures.stripe_simulator import TEST_KEY, RunningSimulator, running_simulator

_CUSTOMERS: Final = 20
_DOUBLES: Final = 0.2  # of all posts repeat one of the last few seconds
_RECENT: Final = 500
_WARM_S: Final = 2
_SECRET: Final = "whsec_of_the_benchmark"  # noqa: S105 - of this benchmark alone
_HANDLED_S_MAX: Final = 1_800
_spawn = multiprocessing.get_context("spawn")


class Webhooks(NamedTuple):
    """``answer_p99_ms`` is the 99th percentile of the time from when a webhook was due to its answer, ``handled_s`` the
    seconds from the first post until every event was handled.
    """

    answer_p99_ms: float
    handled_s: float
    events: int


def post_webhooks(
    engine: sa.Engine, postgres: PostgresSettings, redis_url: str, home: Path, *, rate: int, seconds: int
) -> Webhooks:
    """Post ``rate`` webhooks a second. Raises AssertionError unless each is answered with 200 and handled once."""
    assert database_roles.grant_privileges(engine) == []
    with running_simulator(home / "stripe") as simulator:
        stripe = StripeSettings(
            stripe_api_key=SecretStr(TEST_KEY),
            stripe_api_base=simulator.url,
            stripe_webhook_secret=SecretStr(_SECRET),
        )
        subjects, port, stop = _pay(engine, stripe, simulator), free_port(), _spawn.Event()
        # As behind a reverse proxy: Stripe's addresses are not this machine's, from which all webhooks come here.
        web = WebSettings(control_port=port, control_address_requests_per_minute=None)
        store = S3Settings(s3_endpoint="http://127.0.0.1:9", s3_access_key="x", s3_secret_key=SecretStr("x"))
        settings = control_settings(postgres, RedisSettings(redis_url=redis_url), store, web=web, stripe=stripe)
        processes = [
            _spawn.Process(target=_serve, args=(settings, home / "web.log")),
            _spawn.Process(target=_handle, args=(postgres, stripe, stop)),
        ]
        for process in processes:
            process.start()
        try:
            wait_until(lambda: accepts_connections(port), timeout_s=60, what="the web process")
            begun = time.monotonic()
            took, events = asyncio.run(_post(port, subjects, rate=rate, seconds=seconds))
            wait_until(lambda: _waiting(engine) == 0, timeout_s=_HANDLED_S_MAX, what="events to be handled")
            handled_s = time.monotonic() - begun
        finally:
            stop.set()
            processes[0].terminate()
            for process in processes:
                process.join()
    with engine.connect() as connection:
        counted = connection.exec_driver_sql("SELECT state, count(*) AS events FROM stripe_events GROUP BY state")
        states = {str(row.state): int(row.events) for row in counted}
        granted = connection.exec_driver_sql(
            "SELECT count(*) FROM credit_lots WHERE reference LIKE 'stripe:%%'"
        ).scalar()
    assert states == {"handled": events}, states
    assert granted == _CUSTOMERS, f"{granted} lots of credit for {_CUSTOMERS} payments"
    return Webhooks(quantile(took, 0.99) * 1_000, handled_s, events)


def _pay(engine: sa.Engine, stripe: StripeSettings, simulator: RunningSimulator) -> list[tuple[str, dict[str, Any]]]:
    """What events can be about: customers with a card, and a top-up that each of them paid. By type of event."""
    account, sdk = StripeAccount(stripe), simulator.sdk()
    queues = PaymentQueues(engine, PaymentSettings())
    performer = Performer(account, queues)
    subjects: list[tuple[str, dict[str, Any]]] = []
    for _ in range(_CUSTOMERS):
        tenant_id, top_up = new_id("tn"), ChargeTopUp(charge_id=new_id("top"), amount_cents=2_500)
        with unit_of_work(engine) as session:
            outbox.open_queue(session, tenant_id, name="Ada")
        performer.run_once()
        with unit_of_work(engine) as session:
            customer = outbox.open_queue(session, tenant_id).customer_id
            assert customer is not None, "the customer was created before"
        card = sdk.v1.payment_methods.attach("pm_card_visa", {"customer": customer}).id
        account.set_default_card(customer, card, key=secrets.token_hex(12))
        with unit_of_work(engine) as session:
            outbox.enqueue(session, tenant_id, top_up)
        assert performer.run_once() == "done"
        intent = sdk.v1.payment_intents.list({"customer": customer}).data[0].id
        subjects += [
            ("payment_intent.succeeded", {"id": intent, "object": "payment_intent", "customer": customer}),
            ("customer.updated", {"id": customer, "object": "customer"}),
            ("payment_method.attached", {"id": card, "object": "payment_method", "customer": customer}),
        ]
    return subjects


async def _post(
    port: int, subjects: list[tuple[str, dict[str, Any]]], *, rate: int, seconds: int
) -> tuple[list[float], int]:
    """The seconds that each answer took, and the number of different events. Those of the first two seconds, in which
    the web process opens its connections, are not timed.
    """
    chance = random.Random(1)
    bodies: list[str] = []
    took: list[float] = []
    new = 0
    loop = asyncio.get_running_loop()

    async def one(session: aiohttp.ClientSession, body: str, due: float) -> None:
        header = {"Stripe-Signature": signature_header(body, [_SECRET], int(time.time()))}
        async with session.post(f"http://127.0.0.1:{port}/webhooks/stripe", data=body, headers=header) as answer:
            await answer.read()
            assert answer.status == 200, await answer.text()
        if due >= timed_from:
            took.append(loop.time() - due)

    connector = aiohttp.TCPConnector(limit=100)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60)) as session:
        begun, tasks = loop.time() + 0.1, []
        timed_from = begun + _WARM_S
        for number in range(rate * (seconds + _WARM_S)):
            due = begun + number / rate
            await asyncio.sleep(max(0.0, due - loop.time()))
            if bodies and chance.random() < _DOUBLES:
                body = chance.choice(bodies[-_RECENT:])
            else:
                body = _event(*chance.choice(subjects))
                bodies.append(body)
                new += 1
            tasks.append(asyncio.create_task(one(session, body, due)))
        await asyncio.gather(*tasks)
    return took, new


def _event(kind: str, subject: dict[str, Any]) -> str:
    event = {
        "id": f"evt_{secrets.token_hex(12)}", "object": "event", "api_version": API_VERSION,
        "created": int(time.time()), "data": {"object": subject}, "livemode": False, "pending_webhooks": 1,
        "request": None, "type": kind,
    }  # fmt: skip
    return json.dumps(event, indent=2)


def _waiting(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        waiting = connection.exec_driver_sql("SELECT count(*) FROM stripe_events WHERE state = 'stored'").scalar_one()
    return int(waiting)


def _serve(settings: ControlSettings, log: Path) -> None:
    with log.open("wb") as output:  # a line for each webhook
        os.dup2(output.fileno(), 1)
    server(settings, Bucket(settings.s3, settings.store)).run()


def _handle(postgres: PostgresSettings, stripe: StripeSettings, stop: Event) -> None:
    """The billing worker's job for events."""
    engine, settings = db.connect(postgres), PaymentSettings()
    events = EventHandler(engine, StripeAccount(stripe), settings)
    while not stop.is_set():
        if not events.run_once():
            stop.wait(settings.payments_poll_ms / 1_000)
    engine.dispose()
