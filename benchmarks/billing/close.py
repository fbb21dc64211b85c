"""Closes every tenant's period and times it, in this process or in one of its own."""

import multiprocessing
import time
from datetime import datetime
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue

import click
import sqlalchemy as sa

from billing.invoicing import closing
from core import db
from core.settings import PostgresSettings


def timed_close(engine: sa.Engine, tenants: str, until: datetime | None = None) -> float:
    """Seconds to close every subscribed tenant that is not closed ``until`` then; ``tenants`` is only printed."""
    begun = time.monotonic()
    made, failed = closing.close_all(engine, until)
    took = time.monotonic() - begun
    assert not failed, failed[:3]
    click.echo(f"{len(made)} invoices of {tenants} in {took:.1f} s")
    return took


class CloseProcess:
    """A close beside the process that records, as the schedule of another billing worker would run it."""

    def __init__(self, settings: PostgresSettings, tenants: str) -> None:
        spawned = multiprocessing.get_context("spawn")
        self._took: SimpleQueue[float] = spawned.SimpleQueue()
        self._process: BaseProcess = spawned.Process(target=_close, args=(settings, tenants, self._took))

    def start(self) -> None:
        self._process.start()

    def is_running(self) -> bool:
        return self._process.is_alive()

    def seconds(self) -> float:
        """Wait for the close. Returns how long it took."""
        self._process.join()
        assert self._process.exitcode == 0, "the close failed"
        return self._took.get()


def _close(settings: PostgresSettings, tenants: str, took: "SimpleQueue[float]") -> None:
    engine = db.connect(settings)
    took.put(timed_close(engine, tenants))
    engine.dispose()
