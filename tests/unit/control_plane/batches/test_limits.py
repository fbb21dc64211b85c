"""Limits of the web process and of the batch process's settings."""

import pytest

from control_plane.batches.api import UploadSlots
from control_plane.batches.settings import BatchWorkerSettings
from core.errors import InvalidSettings, Unavailable


def test_a_tenant_receives_at_most_half_of_the_files_at_once():
    slots = UploadSlots(4)
    with slots.of("a"), slots.of("a"):
        with pytest.raises(Unavailable), slots.of("a"):
            pass
        with slots.of("b"), slots.of("c"), pytest.raises(Unavailable), slots.of("d"):
            pass
        with slots.of("b"):
            pass
    with slots.of("a"), slots.of("a"):
        pass
    with UploadSlots(1).of("a"):
        pass


def test_the_address_of_the_gateways_must_be_set(monkeypatch):
    monkeypatch.setenv("TENORA_GATEWAY_URL", "")
    with pytest.raises(InvalidSettings, match="TENORA_GATEWAY_URL"):
        BatchWorkerSettings()
