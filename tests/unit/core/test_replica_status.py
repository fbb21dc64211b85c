"""A replica's status is read as far as this version knows it."""

import msgspec
import pytest

from core.contracts.replicas import read_status
from tests.fixtures.gateway.requests import replica_status


def test_a_state_and_a_field_of_a_newer_agent_are_no_error():
    newer = msgspec.to_builtins(replica_status()) | {"state": "standby", "warmth": 3}
    status = read_status(msgspec.json.encode(newer))
    assert (status.id, status.state) == ("rep_1", "standby")


@pytest.mark.parametrize("encoded", [b"", b"{", b"[]", b'{"id": "rep_1"}', b'{"id":"\xff"}'])
def test_what_is_no_status_counts_as_absent(encoded):
    assert read_status(encoded) is None


def test_a_replica_has_an_engine_once_it_has_pages():
    assert [replica_status(pages_total=pages).has_engine for pages in (0, 1)] == [False, True]
