"""The control plane that commands are tried against."""

import pytest

from control_plane.settings import WebSettings
from core import db
from core.settings import RedisSettings
from tests.fixtures.control_plane.api import control_settings, running_api


@pytest.fixture(scope="module")
def api(module_postgres_settings, redis_server, s3_settings):
    web = WebSettings(control_port=0, acknowledge_wait_ms=0)  # no gateway runs
    settings = control_settings(module_postgres_settings, RedisSettings(redis_url=redis_server), s3_settings, web=web)
    with running_api(settings) as running:
        yield running


@pytest.fixture(scope="module")
def module_engine(module_postgres_settings):
    """Connects to the control plane's database as the owner of its tables."""
    engine = db.connect(module_postgres_settings)
    yield engine
    engine.dispose()
