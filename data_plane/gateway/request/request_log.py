"""Tells what became of each request: a line of the access log, and a row of the request log where no settlement does:
for refusals, callers that hung up before their request ran, and stored answers that were sent again.

Rows are sent to Redis in batches. Fails open: while Redis is away they wait up to a bound, above which rows of the same
cause are counted in one, and a process that is killed takes its last batch with it.
"""

import asyncio
import time
from datetime import datetime
from typing import Final

import msgspec
import structlog
from redis.exceptions import RedisError

from core import clock, redis_keys, telemetry
from core.contracts.request_log import LoggedOutcome, LoggedRequest
from core.errors import AppError
from data_plane.gateway import metrics
from data_plane.gateway.api.client_connection import CLIENT_GONE, Client
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.state.redis_clock import RedisClock
from data_plane.gateway.state.redis_connection import RedisConnection

COMPLETIONS: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages"})
_PROBES: Final = frozenset({"/livez", "/readyz"})
_SENT_AGAIN: Final = frozenset({409, 429, 503})
_ENCODER: Final = msgspec.json.Encoder()
_log = structlog.get_logger()


class _AccessLine(msgspec.Struct):
    """A line of the access log, with the fields of every line. structlog would take three times as long to write it."""

    method: str
    path: str
    status: int
    ms: int
    tenant: str | None
    key: str | None
    model: str | None
    wait_ms: int | None
    load_ms: int | None
    first_text_ms: int | None
    code: str | None
    trace_id: str | None
    request_id: str
    timestamp: datetime
    event: str = "request"
    level: str = "info"
    process: str = "gateway"


class RequestLog:
    """The rows of one process that wait for Redis."""

    def __init__(self, redis: RedisConnection, clock_of_redis: RedisClock, settings: GatewaySettings) -> None:
        self._redis = redis
        self._clock = clock_of_redis
        self._entries_max = settings.request_log_entries_max
        self._rows_max = settings.request_log_refusals_max
        self._every_s = settings.request_log_refusals_s
        self._deadline_s = settings.settlement_deadline_s
        self._access_log = settings.gateway_access_log and telemetry.is_logged("info", settings)
        self._rows: dict[str, LoggedRequest] = {}
        self._of_cause: dict[tuple[str | None, ...], str] = {}  # request id of a row

    def ended(self, client: Client, request_id: str, label: str, error: AppError | None) -> None:
        """A request to the route ``label`` has been answered, with ``error`` if there is one."""
        phases = client.phases
        if self._entries_max and label in COMPLETIONS and phases.event is None and not _comes_again(client, error):
            gone = client.status == CLIENT_GONE
            outcome: LoggedOutcome = "refused" if error else "client_gone" if gone else "replayed"
            self.add(self._row(client, request_id, outcome, error))
        if self._access_log and label not in _PROBES:
            telemetry.write_line(_ENCODER.encode(_access_line(client, request_id, label, error)))

    def add(self, row: LoggedRequest) -> None:
        """Keep a row for the next batch. Above the bound it is counted with one of the same cause, if there is any."""
        cause = row.tenant_id, row.key_id, row.code, row.limit
        if len(self._rows) >= self._rows_max and (kept := self._of_cause.get(cause)) is not None:
            self._rows[kept] = msgspec.structs.replace(self._rows[kept], count=self._rows[kept].count + row.count)
        elif len(self._rows) < 2 * self._rows_max:
            self._rows[row.request_id] = row
            self._of_cause[cause] = row.request_id
        else:
            metrics.REQUEST_LOG_DROPPED.inc(row.count)

    async def run_forever(self) -> None:
        """Send a batch every ``TENORA_REQUEST_LOG_REFUSALS_S``, until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.flush()

    async def flush(self) -> None:
        """Send all rows. Those that Redis does not confirm stay; if it has them after all, readers ignore the copy."""
        rows, self._rows, self._of_cause = self._rows, {}, {}
        if not rows:
            return
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._redis.call(
                    "XADD", redis_keys.REQUEST_LOG, "MAXLEN", "~", self._entries_max, "*",
                    "refusals", _ENCODER.encode(list(rows.values())),
                )  # fmt: skip
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            _log.warning("refusals are not logged yet", rows=len(rows), error=repr(error))
            for row in rows.values():
                self.add(row)

    def _row(self, client: Client, request_id: str, outcome: LoggedOutcome, error: AppError | None) -> LoggedRequest:
        phases = client.phases
        request, caller = phases.request, phases.caller
        adapter = None if request is None else request.target.adapter
        whole_ms = _since_ms(phases.arrived_at)
        return LoggedRequest(
            request_id=request_id,
            time=clock.from_ms(self._clock.now_ms() - whole_ms),
            outcome=outcome,
            tenant_id="" if caller is None else caller.tenant.tenant_id,
            key_id=None if caller is None else caller.key.key_id,
            model=phases.model,
            base_model=None if request is None else request.base_model,
            adapter_id=None if adapter is None else adapter.route.adapter_id,
            revision_id=None if adapter is None else adapter.revision.id,
            rank_class=None if request is None else request.rank_class,
            service_tier=None if request is None else request.service_tier,
            service_class=None if request is None else request.service_class,
            wait_ms=phases.wait_ms,
            whole_ms=whole_ms,
            code=None if error is None else error.code,
            limit=getattr(error, "limit", None),
        )


def _comes_again(client: Client, error: AppError | None) -> bool:
    """Whether this is a line of a batch whose request is sent again, with the same id, or was: one row is enough."""
    return client.line is not None and (error is None or error.status in _SENT_AGAIN)


def _access_line(client: Client, request_id: str, label: str, error: AppError | None) -> _AccessLine:
    phases, caller = client.phases, client.phases.caller
    return _AccessLine(
        method=client.method,
        path=label,
        status=client.status,
        ms=_since_ms(phases.arrived_at),
        tenant=None if caller is None else caller.tenant.tenant_id,
        key=None if caller is None else caller.key.key_id,
        model=phases.model,
        wait_ms=phases.wait_ms,
        load_ms=phases.load_ms,
        first_text_ms=None if phases.first_text_at is None else _ms(phases.first_text_at - phases.arrived_at),
        code=None if error is None else error.code,
        trace_id=phases.trace_id,
        request_id=request_id,
        timestamp=clock.now(),
    )


def _since_ms(monotonic: float) -> int:
    return _ms(time.monotonic() - monotonic)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
