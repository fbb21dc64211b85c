"""Fixtures: the API on a real socket with real servers, a relay, and a registered base model."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import redis as redis_client
from pydantic import SecretStr

from adapters.object_store.revision_store import RevisionStore
from adapters.object_store.s3 import Bucket
from adapters.object_store.upload_store import UploadStore
from adapters.settings import StoreSettings
from billing.notifications.settings import NotificationSettings
from billing.notifications.signing_secrets import SecretBox
from billing.payments.settings import WebhookSettings
from billing.stripe.settings import StripeSettings
from control_plane.projections import projections
from control_plane.publishing.outbox_relay import OutboxRelay
from control_plane.settings import ControlSettings, WebSettings
from core import db, redis_keys
from core.contracts.grants import TenantGrant
from core.provider_settings import ProviderSettings
from core.settings import RedisSettings
from tests.fixtures.control_plane.api import Api, ApiServers, Tenant, control_settings, running_api
from tests.fixtures.control_plane.every_write import EveryWrite
from tests.fixtures.control_plane.ready_revisions import ready_revision
from tests.fixtures.control_plane.usage import UsageRecorder
from tests.fixtures.snapshot_keys import SIGNER
from tests.fixtures.uploads.peft_adapters import tiny_base

NOTIFICATIONS_KEY = "key-of-the-tests"
PROVIDER_SECRET = "secret-of-the-tests"
ANNOUNCED = [
    {"path": "adapter_config.json", "size_bytes": 400, "sha256": "0" * 64},
    {"path": "adapter_model.safetensors", "size_bytes": 4000, "sha256": "1" * 64},
]


@pytest.fixture
def settings(postgres_settings, redis_settings, s3_settings) -> ControlSettings:
    return control_settings(
        postgres_settings, redis_settings, s3_settings, web=WebSettings(control_port=0, acknowledge_wait_ms=0)
    )


@pytest.fixture(scope="session")
def api_servers() -> Iterator[ApiServers]:
    servers = ApiServers()
    yield servers
    servers.close()


@pytest.fixture
def api(settings, api_servers) -> Iterator[Api]:
    """The API on the test's own database."""
    with api_servers.lend(settings) as lent:
        yield lent


@pytest.fixture(scope="module")
def shared_api(module_postgres_settings, redis_server, s3_settings) -> Iterator[Api]:
    """One API for a module whose tests leave no state that other tests would see."""
    redis = RedisSettings(redis_url=redis_server)
    web = WebSettings(control_port=0, acknowledge_wait_ms=0)
    with running_api(control_settings(module_postgres_settings, redis, s3_settings, web=web)) as running:
        yield running


@pytest.fixture
def record(engine, redis) -> UsageRecorder:
    return UsageRecorder(engine, redis)


@pytest.fixture
def base(api):
    """A registered base model."""
    spec = tiny_base()
    api.register(spec).raise_for_status()
    return spec


@pytest.fixture
def relay(engine, redis) -> OutboxRelay:
    return OutboxRelay(engine, redis, projections(), SIGNER)


@pytest.fixture
def grant(relay, redis) -> Callable[[Tenant], TenantGrant]:
    """The tenant as gateways see it once every committed change is published."""

    def published(tenant: Tenant) -> TenantGrant:
        while relay.run_once():
            pass
        return msgspec.json.decode(redis.hget(redis_keys.snapshot("tenants"), tenant.id), type=TenantGrant)

    return published


@pytest.fixture
def store(s3_settings) -> RevisionStore:
    return RevisionStore(Bucket(s3_settings, StoreSettings()))


@pytest.fixture
def uploads(store) -> UploadStore:
    return UploadStore(store.bucket)


@pytest.fixture(scope="module")
def walk(module_postgres_settings, redis_server, s3_settings) -> Iterator[EveryWrite]:
    """The platform after a walk through all writes: of every kind of object there is one. No worker publishes."""
    settings = control_settings(
        module_postgres_settings,
        RedisSettings(redis_url=redis_server),
        s3_settings,
        web=WebSettings(control_port=0, acknowledge_wait_ms=1, control_tenant_requests_per_minute=1_000_000),
        stripe=StripeSettings(stripe_webhook_secret=SecretStr("whsec_of_the_tests")),
        webhooks=WebhookSettings(payments_page_wait_ms=0),
        notifications=NotificationSettings(
            notifications_key=SecretStr(NOTIFICATIONS_KEY),
            notifications_email_from="billing@tenora.example",
            notifications_allow_loopback=True,
            notifications_resolve_ms=200,
            deployment="one-machine",
        ),
        providers=ProviderSettings(provider_secret=SecretStr(PROVIDER_SECRET), provider_inward_hosts=("127.0.0.1:9",)),
    )
    with contextlib.ExitStack() as opened:
        engine = db.connect(module_postgres_settings)
        opened.callback(engine.dispose)
        redis = opened.enter_context(redis_client.Redis.from_url(redis_server))
        redis.flushall()
        walk = EveryWrite(
            opened.enter_context(running_api(settings)), engine, redis, SecretBox([NOTIFICATIONS_KEY.encode()])
        )
        walk.run()
        yield walk


@pytest.fixture(scope="module")
def existing(walk) -> dict[str, list[Any]]:
    """Values of path parameters for which there is something of the walk's tenant, by the names of the parameters."""
    tenant, endpoints = walk.tenant, "/api/v1/notification-endpoints"
    webhook = {"kind": "webhook", "address": "https://127.0.0.1/"}
    endpoint = tenant.http.post(endpoints, json=webhook).raise_for_status().json()
    ready, _ = ready_revision(walk.engine, tenant.adapter("mine", tiny_base())["id"])
    tenant.http.put("/api/v1/adapters/mine/aliases/prod", json={"revision": ready}).raise_for_status()
    return walk.existing() | {
        "name": ["mine"],
        "revision_id": [tenant.announce("mine", ANNOUNCED)["id"], ready],
        "alias": ["prod"],
        "endpoint_id": [endpoint["id"]],
        "delivery_id": [tenant.http.post(f"{endpoints}/{endpoint['id']}/messages").raise_for_status().json()["id"]],
    }
