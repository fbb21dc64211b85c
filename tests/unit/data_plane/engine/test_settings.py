"""Guarantees of the default settings in combination, and pairs of settings that are refused."""

from pathlib import Path

import pytest

from core.errors import InvalidSettings
from data_plane.engine.settings import ReplicaSettings
from tests.fixtures.snapshot_keys import PUBLIC_KEYS


def shipped(name: str) -> float:
    return ReplicaSettings.model_fields[name].default


def test_an_engine_that_hangs_is_out_of_placement_within_twenty_seconds():
    """The last token is seen one heartbeat late, the probe starts one heartbeat late, and its result is published one
    heartbeat late.
    """
    gateways_read_s = 0.25
    found_s = shipped("probe_every_s") + shipped("probe_timeout_s") + 3 * shipped("heartbeat_s") + gateways_read_s
    assert found_s <= 20


def test_one_slow_probe_replaces_no_engine():
    assert shipped("probe_failures_max") > 1


def test_a_status_that_expires_before_the_next_one_is_refused():
    with pytest.raises(InvalidSettings, match="TENORA_HEARTBEAT_S is 5 s, TENORA_STATUS_TTL_S is 5 s"):
        ReplicaSettings(
            model_path=Path("/"),
            engine_key="e" * 16,
            snapshot_public_keys=PUBLIC_KEYS,
            heartbeat_s=5,
            status_ttl_s=5,
        )


def test_a_node_that_no_cordon_could_name_is_refused():
    with pytest.raises(InvalidSettings, match="TENORA_NODE is 'gpu 7'"):
        ReplicaSettings(model_path=Path("/"), engine_key="e" * 16, snapshot_public_keys=PUBLIC_KEYS, node="gpu 7")
