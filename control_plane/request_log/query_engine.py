"""Runs one SQL statement of ClickHouse: in this process, or on a server by URL. Which statement is not decided here."""

from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol

import httpx
import structlog

from core.errors import AppError, Unavailable

if TYPE_CHECKING:
    from core.settings import HttpUrl

_WAIT_S: Final = 10
_log = structlog.get_logger()


class QueryEngine(Protocol):
    """Where statements run."""

    def run(self, sql: str) -> bytes:
        """The answer in the format that the statement names. Raises Unavailable."""


class EmbeddedClickHouse:
    """ClickHouse's engine in this process (chDB), one statement at a time. It is loaded for the first one: the library
    takes 190 MB of memory.
    """

    def __init__(self) -> None:
        self._running = Lock()
        self._connection: Any = None  # the library has no types

    def run(self, sql: str) -> bytes:
        """As the protocol says. Raises Unavailable after a long wait for others, and without the extra ``log``."""
        if not self._running.acquire(timeout=_WAIT_S):
            raise Unavailable(
                "Too many queries of the request log run now. Try again in a few seconds.",
                code="request_log_busy",
                retry_after_s=5,
            )
        try:
            if self._connection is None:
                self._connection = self._connect()
            return bytes(self._connection.query(sql).bytes())
        except RuntimeError as error:
            raise failed(str(error)) from error
        finally:
            self._running.release()

    def _connect(self) -> Any:
        try:
            import chdb  # an optional package, which takes a second to load
        except ImportError as error:
            raise Unavailable(
                "The request log cannot be queried here: install the extra `log` (pip install tenora[log]), or set "
                "TENORA_REQUEST_LOG_CLICKHOUSE_URL.",
                code="request_log_unavailable",
            ) from error
        return chdb.connect(":memory:")


class ClickHouseServer:
    """A ClickHouse server, over its HTTP interface. The server reads the bucket itself."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self._client = httpx.Client(timeout=timeout_s + 1)
        self._url = url

    def run(self, sql: str) -> bytes:
        """As the protocol says."""
        try:
            answer = self._client.post(self._url, content=sql.encode())
        except httpx.HTTPError as error:
            raise failed(repr(error)) from error
        if answer.status_code != httpx.codes.OK:
            raise failed(answer.text[:1000])
        return answer.content


def failed(cause: str) -> AppError:
    """What a caller sees of a failed statement. The cause, which may quote the statement, is only logged."""
    _log.warning("query of the request log failed", cause=cause.partition("SELECT ")[0][:500])
    return Unavailable(
        "The request log could not be queried. Ask for a shorter time range, or try again.",
        code="request_log_unavailable",
        retry_after_s=2,
    )


def query_engine(url: "HttpUrl", *, timeout_s: float) -> QueryEngine:
    """The engine that the settings name."""
    return EmbeddedClickHouse() if url is None else ClickHouseServer(url, timeout_s=timeout_s)
