"""Answers wait for gateways in these tests, as they do by default."""

import pytest

from control_plane.settings import ControlSettings, WebSettings
from tests.fixtures.control_plane.api import control_settings


@pytest.fixture
def settings(postgres_settings, redis_settings, s3_settings) -> ControlSettings:
    return control_settings(postgres_settings, redis_settings, s3_settings, web=WebSettings(control_port=0))
