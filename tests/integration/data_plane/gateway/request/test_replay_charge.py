"""A replayed answer costs one request of its caller's minute, even if Redis answers late."""

import pytest

from core import redis_keys
from core.contracts.grants import KeyGrant, TenantGrant
from core.errors import Unavailable
from core.ids import new_id
from data_plane.gateway.quota.reservation import Reservations
from data_plane.gateway.request.replay_charge import ReplayCharge
from data_plane.gateway.state.authenticate import Caller
from tests.fixtures.gateway.published import AMPLE
from tests.fixtures.gateway.settlement_setup import settler


async def test_a_minutes_request_charged_after_the_deadline_is_returned(redis_settings, redis):
    settling, line = settler(redis_settings.redis_url)
    reservations = Reservations(line, lease_s=30, settled_marker_s=60)
    tenant = TenantGrant(tenant_id=new_id("tn"), status="active", limits=AMPLE)
    caller = Caller(KeyGrant(key_id="key_1", tenant_id=tenant.tenant_id, scopes=()), tenant)
    await ReplayCharge(reservations, settling, deadline_s=5).charge(caller, new_id("req"))
    with pytest.raises(Unavailable):
        await ReplayCharge(reservations, settling, deadline_s=0).charge(caller, new_id("req"))
    await line.call("PING")

    def taken() -> bytes | None:
        return redis.hget(redis_keys.tenant_quota(tenant.tenant_id), "concurrent")

    assert taken() == b"1"
    assert await settling.flush()
    assert taken() == b"0"
    await line.close()
