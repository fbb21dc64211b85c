"""Logs and metrics of a process: one JSON line per event on standard output, Prometheus on a loopback port.

Metrics fail open: when the port is taken, that is logged and the process continues. Secrets and prompts are never
logged.
"""

import logging
import sys

import structlog
from prometheus_client import start_http_server
from structlog.typing import EventDict, WrappedLogger

from core.settings import TelemetrySettings


def set_up(process: str, settings: TelemetrySettings) -> None:
    """Configure structlog for this process and serve its metrics. Call once, at start."""

    def name_process(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """A processor and no context variable, because new threads start with an empty context."""
        event["process"] = process
        return event

    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            name_process,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stdout),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stdout, format='{"level":"%(levelname)s","event":"%(message)s"}'
    )
    if settings.metrics_port:
        try:
            start_http_server(settings.metrics_port, addr="127.0.0.1")
        except OSError as error:
            structlog.get_logger().warning("metrics port unavailable", port=settings.metrics_port, error=str(error))
