"""What the users of the processes may do in Redis. The other tests run their processes with these users."""

import pytest
import redis as redis_client
from redis.exceptions import NoPermissionError

from core import redis_keys
from core.redis_acl import BILLING, GATEWAY, REPLICA, USERS, WEB, WORKER
from tests.fixtures.least_privilege import as_user


@pytest.fixture
def connect(redis_settings):
    opened = []

    def client(user: str) -> redis_client.Redis:
        opened.append(redis_client.Redis.from_url(as_user(redis_settings, user).redis_url))
        return opened[-1]

    yield client
    for each in opened:
        each.close()


@pytest.mark.parametrize("user", [WEB, GATEWAY, REPLICA, BILLING])
def test_only_the_worker_can_publish_a_snapshot(connect, user):
    connect(WORKER).hset(redis_keys.snapshot("keys"), "a", "b")
    client = connect(user)
    assert client.hget(redis_keys.snapshot("keys"), "a") == b"b"
    for key in (redis_keys.snapshot("keys"), redis_keys.SNAPSHOT_META):
        with pytest.raises(NoPermissionError):
            client.hset(key, "a", "c")
    with pytest.raises(NoPermissionError):
        client.xadd(redis_keys.SNAPSHOT_CHANGES, {"change": "x"})
    with pytest.raises(NoPermissionError):
        client.eval("return redis.call('HSET', KEYS[1], 'a', 'c')", 1, redis_keys.snapshot("keys"))


@pytest.mark.parametrize("user", [WEB, WORKER, REPLICA])
def test_only_gateways_and_billing_can_report_usage_or_change_quotas(connect, user):
    client = connect(user)
    with pytest.raises(NoPermissionError):
        client.xadd(redis_keys.USAGE_STREAM, {"event": "x"})
    with pytest.raises(NoPermissionError):
        client.hset(redis_keys.tenant_quota("ten_a"), "month_used", 0)


@pytest.mark.parametrize(
    ("user", "key"),
    [
        (REPLICA, redis_keys.tenant_quota("ten_a")),
        (REPLICA, redis_keys.USAGE_STREAM),
        (REPLICA, redis_keys.GATEWAYS),
        (GATEWAY, redis_keys.CANARY_RESULTS),
        (GATEWAY, redis_keys.USAGE_DEAD_LETTERS),
        (BILLING, redis_keys.replica("rep_a")),
        (BILLING, "another_application"),
        (WORKER, "another_application"),
    ],
)
def test_a_process_reads_only_what_it_needs(connect, user, key):
    with pytest.raises(NoPermissionError):
        connect(user).type(key)


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    "command",
    [
        ("FLUSHALL",), ("KEYS", "*"), ("SCAN", "0"), ("CONFIG", "GET", "*"), ("ACL", "LIST"), ("SHUTDOWN",),
        ("SWAPDB", "0", "1"), ("FUNCTION", "LIST"), ("REPLICAOF", "NO", "ONE"), ("MONITOR",), ("SUBSCRIBE", "x"),
    ],
)  # fmt: skip
def test_no_process_may_administer_the_server(connect, user, command):
    with pytest.raises(NoPermissionError):
        connect(user).execute_command(*command)
