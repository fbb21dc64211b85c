"""Fixtures: the API on a real socket with real servers, a relay, and a registered base model."""

import secrets
from collections.abc import Iterator

import pytest

from adapters.object_store.revision_store import RevisionStore
from adapters.object_store.s3 import Bucket
from adapters.object_store.upload_store import UploadStore
from adapters.settings import StoreSettings
from control_plane.projections import projections
from control_plane.publishing.outbox_relay import OutboxRelay
from control_plane.settings import ControlSettings, WebSettings
from core.settings import RedisSettings
from tests.conftest import create_database
from tests.fixtures.control_plane.api import Api, control_settings, running_api
from tests.fixtures.snapshot_keys import SIGNER
from tests.fixtures.uploads.peft_adapters import tiny_base


@pytest.fixture
def settings(postgres_settings, redis_settings, s3_settings) -> ControlSettings:
    return control_settings(
        postgres_settings, redis_settings, s3_settings, web=WebSettings(control_port=0, acknowledge_wait_ms=0)
    )


@pytest.fixture
def api(settings) -> Iterator[Api]:
    with running_api(settings) as running:
        yield running


@pytest.fixture(scope="module")
def shared_api(postgres_server, migrated_template, redis_server, s3_settings) -> Iterator[Api]:
    """One API for a module whose tests leave no state that other tests would see."""
    postgres = create_database(postgres_server, f"shared_{secrets.token_hex(6)}", migrated_template)
    redis = RedisSettings(redis_url=redis_server)
    with running_api(
        control_settings(postgres, redis, s3_settings, web=WebSettings(control_port=0, acknowledge_wait_ms=0))
    ) as running:
        yield running


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
def store(s3_settings) -> RevisionStore:
    return RevisionStore(Bucket(s3_settings, StoreSettings()))


@pytest.fixture
def uploads(store) -> UploadStore:
    return UploadStore(store.bucket)
