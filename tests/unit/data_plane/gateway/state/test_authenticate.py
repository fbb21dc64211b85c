"""What the snapshot alone says of a key. Which keys a gateway refuses, the tests of its routes show."""

import pytest

from core import api_keys, clock
from core.contracts.grants import KeyGrant, TenantGrant
from core.errors import Unauthenticated
from data_plane.gateway.state.authenticate import authenticate
from data_plane.gateway.state.snapshot import Tables
from tests.fixtures.gateway.published import AMPLE

PEPPER, KEY = b"pepper", api_keys.mint_key("live")


def tables(**changes) -> Tables:
    made = Tables()
    made.tenants["tn_1"] = TenantGrant(tenant_id="tn_1", status="active", limits=AMPLE)
    grant = KeyGrant(key_id="key_1", tenant_id="tn_1", scopes=("inference",), **changes)
    made.keys[api_keys.hash_key(KEY, PEPPER)] = grant
    return made


def test_a_key_is_refused_from_the_instant_of_its_end_on():
    header = [(b"authorization", f"Bearer {KEY}".encode())]
    assert authenticate(header, tables(expires_at_ms=clock.now_ms() + 60_000), PEPPER).key.key_id == "key_1"
    with pytest.raises(Unauthenticated) as refused:
        authenticate(header, tables(expires_at_ms=clock.now_ms()), PEPPER)
    assert refused.value.code == "api_key_expired"
