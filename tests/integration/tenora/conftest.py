"""The control plane that commands are tried against."""

import pytest

from core.settings import RedisSettings
from tests.fixtures.control_plane.api import control_settings, running_api


@pytest.fixture(scope="module")
def api(module_postgres_settings, redis_server, s3_settings):
    settings = control_settings(module_postgres_settings, RedisSettings(redis_url=redis_server), s3_settings)
    with running_api(settings) as running:
        yield running
