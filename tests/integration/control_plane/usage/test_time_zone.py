"""The days of a time zone in the usage API. ``billing.usage.buckets`` has the tests of clocks that change."""

from datetime import datetime

import msgspec

from billing.settings import BillingSettings
from billing.usage.metering import Meter
from billing.usage.stream import UsageStream
from core import clock, redis_keys
from core.contracts.usage import UsageEvent
from core.ids import new_id
from core.spend_windows import window_at


def test_days_are_those_of_the_zone_that_is_asked_for_and_an_unknown_one_is_refused(api, engine, redis):
    tenant, now_ms = api.tenant(), clock.now_ms()
    event = UsageEvent(
        request_id=new_id("req"), tenant_id=tenant.id, key_id="key_1", base_model="tiny-instruct", adapter_id=None,
        revision_id=None, replica_id="rep_1", outcome="done", started_at_ms=now_ms - 900, settled_at_ms=now_ms - 500,
        input_tokens=100, cached_tokens=40, output_tokens=7, kv_page_ms=9_500,
    )  # fmt: skip
    stream = UsageStream(redis, "tests")
    stream.ensure_group()
    redis.xadd(redis_keys.USAGE_STREAM, {"event": msgspec.json.encode(event)})
    Meter(engine, stream, BillingSettings()).process(stream.read(count=1, block_ms=None))

    def starts(**params: str) -> list[datetime]:
        answer = tenant.http.get("/api/v1/usage", params={"bucket": "1d", **params}).raise_for_status().json()
        return [datetime.fromisoformat(row["start"]) for row in answer["data"]]

    settled = clock.from_ms(now_ms - 500)
    assert starts() == [window_at("UTC", "day", settled).start]
    for zone in ("Asia/Tokyo", "America/New_York", "Asia/Kolkata"):
        assert starts(time_zone=zone) == [window_at(zone, "day", settled).start]
    refused = tenant.http.get("/api/v1/usage", params={"bucket": "1d", "time_zone": "Mars/Olympus"})
    assert (refused.status_code, refused.json()["code"], refused.json()["param"]) == (400, "unknown_zone", "time_zone")
