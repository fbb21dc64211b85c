"""A platform with five weeks of life, for browsers to look at: three tenants, their fine-tunes, keys, people, usage,
invoices and webhooks, a fleet and its decisions. All of it is written by the platform's own services.
"""

import contextlib
import math
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import redis as redis_client
import sqlalchemy as sa
from pydantic import SecretStr

from adapters.base_model_spec import BaseModelSpec
from adapters.object_store.s3 import Bucket
from adapters.settings import StoreSettings
from billing.notifications.settings import NotificationSettings
from billing.payments import event_store
from billing.payments.alarms import raise_alarm
from billing.payments.settings import WebhookSettings
from billing.quotas.rebuild import rebuild
from billing.reconciliation import runs
from billing.reconciliation.engine_usage import store_reports
from billing.settings import BillingSettings
from billing.stripe.objects import StripeEvent
from billing.stripe.settings import StripeSettings
from control_plane.pools import decisions
from control_plane.projections import projections
from control_plane.publishing.outbox_relay import OutboxRelay
from control_plane.registry.models import Revision
from control_plane.request_log.writer import RequestLogWriter
from control_plane.settings import ConsoleSettings, WebSettings
from core import clock, db, redis_keys
from core.contracts.engine_usage import EngineUsageHour, EngineUsageReport
from core.contracts.fleet import WantedPool, WantedRevision
from core.contracts.request_log import LoggedRequest
from core.contracts.usage import UsageEvent
from core.db import unit_of_work
from core.ids import derived_id
from core.settings import PostgresSettings, RedisSettings, S3Settings
from tenora.stack import embedded_servers
from tenora.stack.program import free_port
from tests.conftest import running
from tests.fixtures.control_plane.api import Api, Tenant, control_settings, running_api
from tests.fixtures.control_plane.browser import Person, admin, join
from tests.fixtures.control_plane.logged_requests import append, append_refusals, served
from tests.fixtures.control_plane.ready_revisions import ready_revision
from tests.fixtures.control_plane.registry_rows import beat
from tests.fixtures.control_plane.streaming_gateway import streaming_gateway
from tests.fixtures.control_plane.usage import UsageRecorder, used
from tests.fixtures.snapshot_keys import SIGNER
from tests.fixtures.uploads.peft_adapters import tiny_base

DAYS: Final = 36
MODEL: Final = "smollm2-135m-instruct"
_S3_KEY: Final = "key-of-the-tests"
_PRICES: Final = {
    "input_nanos": 50_000, "cached_input_nanos": 10_000, "output_nanos": 150_000, "kv_page_second_nanos": 20_000,
}  # fmt: skip
_REPORT: Final = {
    "problems": [
        {
            "code": "rank_too_large", "file": "adapter_config.json", "where": "r", "count": 1,
            "message": 'r is 128; plan "growth" allows 64. Train with LoraConfig(r=64).',
        },
        {
            "code": "not_finite", "file": "adapter_model.safetensors", "count": 12,
            "where": "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight",
            "message": "12 of 36,864 values are NaN or infinite.",
        },
    ],
    "notes": ["optimizer.pt was left out: it is no part of an adapter."],
}  # fmt: skip
_CANARY: Final = {
    "prompt": "My order arrived with one boot missing.",
    "base_answer": "I'm sorry to hear that. Could you tell me more about",
    "adapter_answer": "route: missing-item",
    "largest_difference_nats": 3.412,
    "load_ms": 412,
}


@dataclass
class Demonstration:
    """``ids`` has a value for each parameter of a page's path. ``owner`` is of ``tenant``, ``operator`` of the
    platform; both are signed in at browsers without scripts, whose cookies may be used.
    """

    api: Api
    engine: sa.Engine
    redis: redis_client.Redis
    bucket: Bucket
    tenant: Tenant
    owner: Person
    operator: Person
    base: BaseModelSpec
    ids: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def demonstrated(home: Path, postgres: PostgresSettings, redis_url: str) -> Iterator[Demonstration]:
    """The platform, on a migrated database and an empty Valkey, until the block ends."""
    console = f"http://127.0.0.1:{(port := free_port())}"
    s3 = embedded_servers.s3(
        home / "s3", home, port=free_port(), access_key=_S3_KEY, secret_key=_S3_KEY, bucket="tenora",
        cors_origins=(console,),
    )  # fmt: skip
    with contextlib.ExitStack() as opened:
        opened.enter_context(running(s3.program))
        gateway = opened.enter_context(streaming_gateway())
        stored = S3Settings(
            s3_endpoint=s3.url, s3_access_key=_S3_KEY, s3_secret_key=SecretStr(_S3_KEY), s3_checksum_header=False
        )
        settings = control_settings(
            postgres, RedisSettings(redis_url=redis_url), stored,
            web=WebSettings(control_port=port, acknowledge_wait_ms=1, control_tenant_requests_per_minute=1_000_000),
            console=ConsoleSettings(gateway_url=gateway, gateway_public_url="https://api.tenora.example"),
            stripe=StripeSettings(stripe_webhook_secret=SecretStr("whsec_of_the_tests")),
            webhooks=WebhookSettings(payments_page_wait_ms=0),
            notifications=NotificationSettings(
                notifications_key=SecretStr(_S3_KEY * 2), notifications_email_from="billing@tenora.example",
                notifications_allow_loopback=True, notifications_resolve_ms=200, deployment="one-machine",
            ),
        )  # fmt: skip
        engine = db.connect(postgres)
        opened.callback(engine.dispose)
        redis = opened.enter_context(redis_client.Redis.from_url(redis_url))
        redis.flushall()
        api = opened.enter_context(running_api(settings))
        yield _Filling(api, engine, redis, Bucket(stored, StoreSettings())).run()


class _Filling:
    """The life of the platform, in order."""

    def __init__(self, api: Api, engine: sa.Engine, redis: redis_client.Redis, bucket: Bucket) -> None:
        self.api, self.engine, self.redis, self.bucket = api, engine, redis, bucket
        self.admin, self.random = api.admin, random.Random(33)
        self.base = tiny_base(id=MODEL, hub_name="HuggingFaceTB/SmolLM2-135M-Instruct")
        self.ids: dict[str, str] = {}
        self.revisions: dict[str, list[tuple[str, str]]] = {}

    def run(self) -> Demonstration:
        self.api.register(self.base).raise_for_status()
        limits = {"adapters": 8, "adapter_rank": 64, "adapter_bytes": 256 << 20}
        plan = self.api.plan("growth", limits=limits, prices=_PRICES)
        self.api.plan("starter", prices=_PRICES)
        later = {"prices": {"output_nanos": 140_000}, "limits": {"requests_per_minute": 900}}
        begins = (datetime.now(UTC) + timedelta(days=20)).isoformat()
        self._post(f"plans/{plan['id']}/versions", later | {"effective_from": begins})
        tenants = [self._tenant(name, plan) for name, plan in _TENANTS]
        owner, operator = self._people(tenants[0])
        self._adapters(tenants[0])
        keys = self._keys(tenants[0])
        self._usage(tenants, keys)
        self._requests(tenants[0], keys)
        self._money(tenants)
        self._webhooks(tenants[0])
        self._batches(tenants[0])
        self._fleet()
        self._publish(tenants[0])
        self.ids |= {"tenant_id": tenants[0].id, "plan_id": plan["id"], "pool": "chat", "name": "ticket-router"}
        return Demonstration(
            self.api, self.engine, self.redis, self.bucket, tenants[0], owner, operator, self.base, self.ids
        )

    def _post(self, path: str, body: Any = None, **options: Any) -> Any:
        answer = self.admin.post(f"/api/v1/admin/{path}", json=body, **options)
        assert answer.is_success, (path, answer.text)
        return answer.json() if answer.content else None

    def _tenant(self, name: str, plan: str) -> Tenant:
        made = self.api.tenant(plan)
        self.admin.patch(f"/api/v1/admin/tenants/{made.id}", json={"name": name}).raise_for_status()
        return made

    def _people(self, tenant: Tenant) -> tuple[Person, Person]:
        owner = join(self.api, tenant, "owner", "Ana Ruiz", "ana@acme.example")
        for role, name in (("developer", "Ben Okafor"), ("billing", "Chiyo Tanaka")):
            join(self.api, tenant, role, name, f"{name.split()[0].lower()}@acme.example")
        invitation = {"email": "dana@acme.example", "role": "viewer"}
        self._post(f"tenants/{tenant.id}/invitations", invitation)
        asked = self.api.anyone.post("/device-authorizations", json={"label": "ana-laptop"}).raise_for_status()
        self.ids["code"] = asked.json()["code"]
        owner.browser.open("/login-code")
        owner.browser.send("Go on", code=self.ids["code"]).raise_for_status()
        return owner, admin(self.api, name="Olu Adeyemi", email="olu@tenora.example")

    def _adapters(self, tenant: Tenant) -> None:
        for name, ready in (("ticket-router", 3), ("shop-voice", 2), ("order-extractor", 1), ("faq", 0)):
            made = tenant.adapter(name, self.base)
            self.revisions[name] = [(ready_revision(self.engine, made["id"])[0], made["id"]) for _ in range(ready)]
            if not ready:
                self._rejected(tenant, made["id"])
        newest, before = self.revisions["shop-voice"][-1][0], self.revisions["shop-voice"][0][0]
        self._alias(tenant, "shop-voice", "prod", {before: 90, newest: 10})
        self._alias(tenant, "ticket-router", "prod", {self.revisions["ticket-router"][1][0]: 100})
        self._alias(tenant, "ticket-router", "canary", {self.revisions["ticket-router"][2][0]: 100})
        tenant.http.patch("/api/v1/adapters/order-extractor", json={"pinned": False}).raise_for_status()
        ready_revision(self.engine, tenant.adapter("old-router", self.base)["id"])
        self.ids["revocation_id"] = tenant.http.delete("/api/v1/adapters/old-router").raise_for_status().json()["id"]
        self.ids["revision_id"] = self.revisions["ticket-router"][-1][0]
        with unit_of_work(self.engine) as session:
            for revision, _ in (each for of_one in self.revisions.values() for each in of_one):
                session.get_one(Revision, revision).size_bytes = self.random.randint(30_000_000, 60_000_000)
            row = session.get_one(Revision, self.ids["revision_id"])
            row.size_bytes, row.report = 41_203_112, {"problems": [], "notes": [], "canary": _CANARY}

    def _alias(self, tenant: Tenant, adapter: str, alias: str, weights: dict[str, int]) -> None:
        path = f"/api/v1/adapters/{adapter}/aliases/{alias}"
        tenant.http.put(path, json={"weights": weights}).raise_for_status()

    def _rejected(self, tenant: Tenant, adapter_id: str) -> None:
        with unit_of_work(self.engine) as session:
            row = Revision(
                tenant_id=tenant.id, adapter_id=adapter_id, status="rejected", size_bytes=164_812_448, report=_REPORT,
                decided_at=clock.now(),
            )  # fmt: skip
            session.add(row)
            session.flush()
            self.ids["rejected"] = row.id

    def _keys(self, tenant: Tenant) -> list[str]:
        bodies = ({"name": "prod"}, {"name": "web"}, {"name": "nightly-evals", "limits": {"requests_per_minute": 60}})
        made = [
            tenant.http.post("/api/v1/api-keys", json={"scopes": ["inference"]} | body).raise_for_status().json()
            for body in bodies
        ]
        old = tenant.http.post("/api/v1/api-keys", json={"name": "laptop of Ben"}).raise_for_status().json()
        tenant.http.delete(f"/api/v1/api-keys/{old['id']}").raise_for_status()
        limit = {"scope": "tenant", "window": "month", "amount_nanos": 1_000 * 10**9}
        tenant.http.post("/api/v1/spend-limits", json=limit).raise_for_status()
        key_limit = {"scope": "key", "window": "day", "amount_nanos": 5 * 10**9, "subject_id": made[2]["id"]}
        tenant.http.post("/api/v1/spend-limits", json=key_limit).raise_for_status()
        return [each["id"] for each in made]

    def _usage(self, tenants: list[Tenant], keys: list[str]) -> None:
        """More in the daytime and on working days, more each week, more of the first tenant."""
        record, now = UsageRecorder(self.engine, self.redis), clock.now()
        adapters = [*(each for each in self.revisions if self.revisions[each]), None]
        events: list[UsageEvent] = []
        for tenant, share in zip(tenants, (4, 2, 0.5), strict=True):
            for hours in range(DAYS * 24, 0, -1):
                at = now - timedelta(hours=hours)
                daily = 0.35 + max(0.0, math.sin((at.hour - 6) / 24 * 2 * math.pi))
                weekly = (0.4 if at.weekday() > 4 else 1) * (1 + (DAYS * 24 - hours) / (DAYS * 24))
                for number in range(round(share * daily * weekly * self.random.uniform(0.5, 1.5))):
                    own = tenant is tenants[0]
                    adapter = self.random.choices(adapters, (5, 3, 1, 1))[0] if own else None
                    key = self.random.choices(keys, (5, 3, 1))[0] if own else tenant.key_id
                    events.append(self._event(tenant, at + timedelta(seconds=number * 7), adapter, key))
        record(*(event for event in events if event.settled_at_ms < clock.to_ms(now)))
        self._engine_counts(events)

    def _event(self, tenant: Tenant, at: datetime, adapter: str | None, key: str) -> UsageEvent:
        revision, adapter_id = self.random.choice(self.revisions[adapter]) if adapter else (None, None)
        tokens = self.random.randint(400, 6_000)
        return used(
            tenant.id, at, request_id=derived_id("req", clock.to_ms(at), tenant.id, adapter, self.random.random()),
            base_model=MODEL, adapter_id=adapter_id, revision_id=revision, key_id=key, input_tokens=tokens,
            cached_tokens=tokens // 3, output_tokens=self.random.randint(40, 900), kv_page_ms=tokens * 40,
            kv_measured=True, rank_class=16 if adapter else None, replica_id="rep_a",
        )  # fmt: skip

    def _engine_counts(self, events: list[UsageEvent]) -> None:
        """The engines' own counts of the same requests, in 200 hours a report."""
        counts: dict[tuple[str, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for event in events:
            sums = counts[event.tenant_id, event.settled_at_ms // 3_600_000 * 3_600_000]
            sums["requests"] += 1
            sums["prompt_tokens"] += event.input_tokens
            sums["cached_tokens"] += event.cached_tokens
            sums["output_tokens"] += event.output_tokens
            sums["kv_page_ms"] += event.kv_page_ms
        hours = [EngineUsageHour(tenant_id=tenant, hour_ms=ms, **sums) for (tenant, ms), sums in counts.items()]
        for first in range(0, len(hours), 200):
            report = EngineUsageReport(
                replica_id="rep_a", boot_id="boot_1", base_model=MODEL, hours=tuple(hours[first : first + 200])
            )
            self.redis.xadd(redis_keys.ENGINE_USAGE, {"report": msgspec.json.encode(report)})
        store_reports(self.engine, self.redis)

    def _requests(self, tenant: Tenant, keys: list[str]) -> None:
        """The request log of the last hours, with refusals and a caller who hung up."""
        now_ms, rows = clock.now_ms(), []
        for number in range(70):
            settled = now_ms - number * self.random.randint(40_000, 90_000) - 4_000
            adapter = self.random.choice(["ticket-router", "shop-voice", None])
            wait, load = self.random.randint(0, 20), self.random.choice([0, 0, 0, 38, 310])
            prefill, decode = self.random.randint(30, 90), self.random.randint(200, 2_400)
            first = wait + load + prefill
            rows.append(
                served(
                    tenant.id, settled_at_ms=settled, started_at_ms=settled - first - decode, key_id=keys[number % 3],
                    request_id=derived_id("req", settled, number), model=f"{adapter}:prod" if adapter else MODEL,
                    base_model=MODEL, adapter_id=None, revision_id=None, replica_id="rep_a", pool="chat",
                    input_tokens=self.random.randint(30, 900), cached_tokens=16, output_tokens=decode // 20,
                    wait_ms=wait, adapter_load_ms=load, prefill_ms=prefill, first_token_ms=first,
                    duration_ms=first + decode, adapter_tier="memory" if load else "slot",
                    outcome="client_gone" if number % 17 == 5 else "done",
                    price_nanos=self.random.randint(800_000, 94_000_000),
                )
            )  # fmt: skip
        self.ids["request_id"] = append(self.redis, *rows)[0]
        refused = [
            LoggedRequest(
                request_id=derived_id("req", now_ms - 9_000 - number * 310_000, number),
                time=clock.from_ms(now_ms - 9_000 - number * 310_000), outcome="refused",
                tenant_id=tenant.id, key_id=keys[1], model="ticket-router", code="requests_per_minute", whole_ms=2,
            )
            for number in range(3)
        ]  # fmt: skip
        append_refusals(self.redis, *refused)
        writer = RequestLogWriter(self.redis, self.bucket, entries_max=500)
        while writer.run_once():
            pass

    def _money(self, tenants: list[Tenant]) -> None:
        seller = {"legal_name": "Tenora GmbH", "country": "DE"}
        self.admin.put("/api/v1/admin/billing/seller", json=seller).raise_for_status()
        tenants[0].http.put("/api/v1/billing-profile", json={"legal_name": "Acme Support Ltd"}).raise_for_status()
        self._post(f"tenants/{tenants[0].id}/credits", {"kind": "promotional", "amount_nanos": 25 * 10**9})
        month = clock.now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        closed = self._post("billing/close", {"until": month.isoformat()})
        invoice = next(each for each in closed["invoices"] if each["tenant_id"] == tenants[0].id)
        self.ids["invoice_id"] = invoice["id"]
        lines = tenants[0].http.get(f"/api/v1/invoices/{invoice['id']}/explain").json()["data"]
        self.ids["line_id"] = next(each["line"]["id"] for each in lines if each["requests_url"])
        other = next(each for each in closed["invoices"] if each["tenant_id"] == tenants[1].id)
        payment = {"amount_cents": other["amount_due_cents"], "reference": "wire-4411"}
        self._post(f"invoices/{other['id']}/payments", payment)
        message = "Card of Kestrel Labs was declined: insufficient funds. The next try is in 3 days."
        event = StripeEvent(
            id="evt_1", type="payment_intent.payment_failed", created_at=clock.now(), api_version=None,
            object_id="pi_1", object_kind="payment_intent", customer=None,
        )  # fmt: skip
        with unit_of_work(self.engine) as session:
            raise_alarm(session, kind="payment_failed", tenant_id=tenants[2].id, message=message, dedupe_key="k")
            event_store.store(session, [event], source="webhook")
        runs.run(self.engine, runs.run_limits(BillingSettings()), full=True)

    def _put(self, path: str, body: Any) -> None:
        self.admin.put(f"/api/v1/admin/{path}", json=body).raise_for_status()

    def _webhooks(self, tenant: Tenant) -> None:
        hook = {"kind": "webhook", "address": "https://127.0.0.1/hooks/tenora"}
        made = tenant.http.post("/api/v1/notification-endpoints", json=hook).raise_for_status().json()
        tenant.http.post(f"/api/v1/notification-endpoints/{made['id']}/messages").raise_for_status()
        mail = {"kind": "email", "address": "oncall@acme.example"}
        tenant.http.post("/api/v1/notification-endpoints", json=mail).raise_for_status()

    def _batches(self, tenant: Tenant) -> None:
        line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": MODEL}}
        content = msgspec.json.encode(line)
        for _ in range(2):
            parts = {"data": {"purpose": "batch"}, "files": {"file": ("evals.jsonl", content)}}
            file = tenant.http.post("/v1/files", **parts).raise_for_status().json()
            body = {
                "input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h",
            }  # fmt: skip
            tenant.http.post("/v1/batches", json=body).raise_for_status()

    def _fleet(self) -> None:
        self._post("pools", {"name": "chat", "base_model": MODEL})
        self.admin.patch("/api/v1/admin/pools/chat", json={"replicas_max": 4}).raise_for_status()
        for engine in ("vllm 0.31.0 cpu", "vllm 0.32.0 cpu"):
            made = self._post("pools/chat/revisions", {"weights": "3" * 64, "engine": engine})
        self._put("pools/chat/revision", {"revision": 2})
        for name, used_pages, state, changes in (
            ("rep_a", 2_498, "ready", {"running_requests": 12, "node": "gpu-1"}),
            ("rep_b", 1_101, "ready", {"running_requests": 5, "waiting_requests": 1, "node": "gpu-2"}),
            ("rep_c", 190, "draining", {"running_requests": 1, "node": "gpu-2", "rank_max": 64}),
        ):
            pages = {"pages_total": 4_096, "pages_free": 4_096 - used_pages}
            of_pool = {"pool": "chat", "revision": made["digest"]}
            beat(self.redis, MODEL, replica_id=name, expires_s=7_200, state=state, **(pages | of_pool | changes))
        wanted = WantedPool(pool="chat", revisions=(WantedRevision(number=2, replicas=3, environment={}),))
        self.redis.hset(redis_keys.FLEET_WANTED, "chat", msgspec.json.encode(wanted))
        with unit_of_work(self.engine) as session:
            decisions.record(session, "chat", 1, 2, "pages", {"pages_held": 3_801, "pages_waiting": 240})
            decisions.record(session, "chat", 2, 3, "latency", {"ttft_p95_ms": 912, "ttft_target_ms": 500})
        self._put("cordons/node/gpu-3", {"reason": "memory errors, ticket 118"})

    def _publish(self, tenant: Tenant) -> None:
        """What gateways see, and the quotas that follow from the ledger."""
        relay = OutboxRelay(self.engine, self.redis, projections(), SIGNER)
        while relay.run_once():
            pass
        rebuild(self.engine, self.redis, tenant.id)


_TENANTS: Final = (("Acme Support", "growth"), ("Juniper Outdoor", "growth"), ("Kestrel Labs", "starter"))
