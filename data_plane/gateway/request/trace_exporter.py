"""Sends traces to a collector: OTLP over HTTP, encoded as JSON (https://opentelemetry.io/docs/specs/otlp/#otlphttp).

Fails open: traces wait in memory up to a bound, above which new ones are dropped, and each round of sending ends within
a deadline. A request never waits for it.
"""

import asyncio
import re
import ssl
from collections import deque
from typing import Final
from urllib.parse import urlsplit

import msgspec
import structlog

from data_plane.gateway import metrics
from data_plane.gateway.trace_settings import TraceSettings, headers_of

_BATCH_MAX: Final = 256
_RETRIED: Final = frozenset({429, 502, 503, 504})  # the only statuses that OTLP lets a client retry
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)\b.*\r\n")
_HTTPS: Final = 443
_HTTP: Final = 80
_log = structlog.get_logger()


class TraceExporter:
    """The traces of one process that wait for the collector."""

    def __init__(self, settings: TraceSettings, gateway_id: str) -> None:
        self._waiting: deque[bytes] = deque()
        self._waiting_max = settings.traces_waiting_max
        self._every_s = settings.otlp_interval_s
        self._deadline_s = settings.otlp_timeout_s
        resource = {"service.name": "tenora-gateway", "service.instance.id": gateway_id}
        attributes = [{"key": name, "value": {"stringValue": value}} for name, value in resource.items()]
        self._opening = b'{"resourceSpans":[{"resource":{"attributes":%b},"scopeSpans":[{"spans":[' % (
            msgspec.json.encode(attributes)
        )
        self.enabled = settings.otlp_endpoint is not None
        url = urlsplit(settings.otlp_endpoint or "http://localhost")
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._host, self._port = url.hostname, url.port or (_HTTPS if self._tls else _HTTP)
        headers = [("host", url.netloc), *headers_of(settings.otlp_headers.get_secret_value())]
        self._head = f"POST {url.path.rstrip('/')}/v1/traces HTTP/1.1\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in headers
        )

    def add(self, spans: bytes) -> None:
        """Keep one trace for the next round: its spans as JSON, separated by commas."""
        if len(self._waiting) < self._waiting_max:
            self._waiting.append(spans)
        else:
            metrics.TRACES_DROPPED.labels("full").inc()

    async def run_forever(self) -> None:
        """Send what waits every ``TENORA_OTLP_INTERVAL_S``, until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.flush()

    async def flush(self) -> None:
        """Send what waits, for at most ``TENORA_OTLP_TIMEOUT_S``. The rest stays for the next round."""
        try:
            async with asyncio.timeout(self._deadline_s):
                while self._waiting:
                    await self._send([self._waiting[at] for at in range(min(len(self._waiting), _BATCH_MAX))])
        except (OSError, ValueError) as error:  # among them TimeoutError, TLS, a name of a host, an endless line
            _log.warning("traces are not sent yet", traces=len(self._waiting), error=repr(error))

    async def _send(self, batch: list[bytes]) -> None:
        """Send the oldest traces. They stay where the collector asks for them later. Raises OSError and ValueError."""
        status = await self._post(self._opening + b",".join(batch) + b"]}]}]}")
        if status in _RETRIED:
            raise ConnectionError(f"the collector answered {status}")
        for _ in batch:
            self._waiting.popleft()
        if status // 100 != 2:
            metrics.TRACES_DROPPED.labels("refused").inc(len(batch))
            _log.warning("the collector refused traces", traces=len(batch), status=status)

    async def _post(self, body: bytes) -> int:
        """The status of the collector's answer, whose rest is not read. Raises OSError and ValueError."""
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        try:
            head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            writer.write((self._head + head).encode() + body)
            line = _STATUS_LINE.fullmatch(await reader.readline())
        finally:
            writer.transport.abort()  # a close would wait for a collector that does not read
        if line is None:
            raise ConnectionError("the collector's answer is not HTTP")
        return int(line[1])
