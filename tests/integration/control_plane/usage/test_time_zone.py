"""The days of a time zone in the usage API. ``billing.usage.buckets`` has the tests of clocks that change."""

from datetime import datetime, timedelta

from core import clock
from core.spend_windows import window_at
from tests.fixtures.control_plane.usage import used


def test_days_are_those_of_the_zone_that_is_asked_for_and_an_unknown_one_is_refused(api, record):
    tenant, settled = api.tenant(), clock.now() - timedelta(milliseconds=500)
    record(used(tenant.id, settled))

    def starts(**params: str) -> list[datetime]:
        answer = tenant.http.get("/api/v1/usage", params={"bucket": "1d", **params}).raise_for_status().json()
        return [datetime.fromisoformat(row["start"]) for row in answer["data"]]

    assert starts() == [window_at("UTC", "day", settled).start]
    for zone in ("Asia/Tokyo", "America/New_York", "Asia/Kolkata"):
        assert starts(time_zone=zone) == [window_at(zone, "day", settled).start]
    refused = tenant.http.get("/api/v1/usage", params={"bucket": "1d", "time_zone": "Mars/Olympus"})
    assert (refused.status_code, refused.json()["code"], refused.json()["param"]) == (400, "unknown_zone", "time_zone")
