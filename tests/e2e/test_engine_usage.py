"""What a real engine counts for each tenant's requests, against its own metrics, however the requests end."""

import asyncio

import httpx
import pytest

from core.contracts.engine_usage import EndedRequest, EngineUsageHour
from core.ids import new_id
from data_plane.engine.kv_table import KvTableReader
from tests.conftest import wait_until
from tests.fixtures.engine.real_engine import BASE

pytestmark = [pytest.mark.e2e, pytest.mark.soak]
NEVER_ENDS = {"0": -100, "2": -100}


class Reports:
    """The newest counts that the agent has reported."""

    def __init__(self, room) -> None:
        self.hours: dict[tuple[str, int], EngineUsageHour] = {}
        self.requests: dict[str, EndedRequest] = {}
        for report in room.usage_reports():
            self.hours |= {(hour.tenant_id, hour.hour_ms): hour for hour in report.hours}
            self.requests |= {request.request_id: request for request in report.requests}

    def tokens(self, tenant_id: str) -> int:
        return sum(
            hour.prompt_tokens + hour.output_tokens for (owner, _), hour in self.hours.items() if owner == tenant_id
        )

    def page_ms(self, tenant_id: str) -> int:
        return sum(hour.kv_page_ms for (owner, _), hour in self.hours.items() if owner == tenant_id)


async def ask(engine, tenant_id: str, *, closes_after: int | None = None, aborts_after: int | None = None, **fields):
    """One streamed completion; it closes its connection, as a dying gateway does, or aborts, after so many events."""
    request_id = new_id("req")
    headers = {**engine.client.headers, "x-request-id": request_id, "x-tenora-tenant": tenant_id}
    body = {
        "model": BASE, "prompt": "The sea", "max_tokens": 120, "temperature": 1, "logit_bias": NEVER_ENDS,
        "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip
    async with (
        httpx.AsyncClient(base_url=engine.url, headers=headers, timeout=120) as client,
        client.stream("POST", "/v1/completions", json=body | fields) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        events = 0
        async for line in answer.aiter_lines():
            events += line.startswith("data: {")
            if events == closes_after:
                break
            if events == aborts_after:
                await client.post("/inference/v1/abort_requests", json={"request_ids": [f"cmpl-{request_id}-0"]})
    return request_id


def test_each_tenants_counts_add_up_to_the_engines_own_however_requests_end(engine, room):
    wait_until(room.is_settled, what="the counters to follow the engine's")
    table = KvTableReader(engine.settings.run_dir)
    tokens_before, page_ms_before = room.counted_tokens(), table.total_page_ms()
    one, other = new_id("tn"), new_id("tn")

    async def together():
        return await asyncio.gather(
            ask(engine, one),
            ask(engine, one, n=3),
            ask(engine, other, aborts_after=10),
            ask(engine, other, closes_after=10),
            ask(engine, other, n=2, closes_after=15),
        )

    _, _, aborted, closed, both_closed = asyncio.run(together())
    gone = {aborted, closed, both_closed}
    wait_until(lambda: gone <= Reports(room).requests.keys(), what="the requests that were cut off")

    def counted() -> int:
        return room.counted_tokens() - tokens_before

    wait_until(
        lambda: (found := Reports(room)) and found.tokens(one) + found.tokens(other) == counted() and room.is_settled(),
        what="the sums by tenant to equal the engine's counters",
    )
    found = Reports(room)
    print(
        f"\n{found.tokens(one)} + {found.tokens(other)} tokens, page-ms {found.page_ms(one)} + {found.page_ms(other)}"
    )
    by_id = [found.requests[each] for each in gone]
    assert sum(each.prompt_tokens + each.output_tokens for each in by_id) == found.tokens(other)
    assert sum(each.kv_page_ms or 0 for each in by_id) == found.page_ms(other) > 0
    assert found.page_ms(one) + found.page_ms(other) == table.total_page_ms() - page_ms_before
