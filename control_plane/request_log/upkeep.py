"""Keeps the request log's files few, and removes what may no longer be there: rows that are too old, and the rows of
tenants that are to be erased. One process does it at a time.
"""

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Final

import redis as redis_client
import structlog
from sqlalchemy import Engine

from adapters.object_store.s3 import Bucket
from control_plane.request_log import files
from control_plane.request_log.files import RequestLogFile
from control_plane.request_log.writer import written_before
from control_plane.settings import RequestLogSettings
from core import clock, db, redis_keys

_LOCK: Final = 7_301_945_138  # any fixed number
_FILES_MIN: Final = 16
_MERGED_BYTES_MAX: Final = 16 << 20  # some hundred thousand rows, which take ten times as much memory
_log = structlog.get_logger()


class RequestLogUpkeep:
    """The rounds of one process."""

    def __init__(self, engine: Engine, redis: redis_client.Redis, bucket: Bucket, settings: RequestLogSettings) -> None:
        self._engine = engine
        self._redis = redis
        self._bucket = bucket
        self._days = settings.request_log_days

    def run_once(self) -> bool:
        """One round. Always returns False. Every step may be repeated."""
        with db.exclusively(self._engine, _LOCK) as alone:
            if alone:
                self.tidy()
        return False

    def tidy(self) -> None:
        """Delete what does not count or is too old, erase tenants, then merge. What a merge replaces is deleted in the
        next round, so that a query that has just listed it can read it.
        """
        wanted = files.requested_erasures(self._bucket)
        is_written = self._redis.xlen(redis_keys.REQUEST_LOG) == 0
        before = written_before(self._redis)
        due = [tenant_id for tenant_id, asked_ms in wanted.items() if is_written or before.ms > asked_ms]
        # Listed last: a merged file must not cover one that is still to come, nor an erasure miss it.
        everything = files.listed(self._bucket, date.min, date.max)
        oldest = (clock.now() - timedelta(days=self._days)).date().isoformat()
        kept = [file for file in files.counting(everything) if file.day >= oldest]
        self._bucket.delete([file.key for file in set(everything).difference(kept)])
        self._erase(kept, due)
        for run in files.runs_to_merge(kept, before=before, files_min=_FILES_MIN, bytes_max=_MERGED_BYTES_MAX):
            from control_plane.request_log.parquet import read, write  # a worker starts without pyarrow

            self._bucket.put(files.merged(run).key, write(read([self._bucket.get(file.key) for file in run])))

    def _erase(self, kept: Sequence[RequestLogFile], due: Sequence[str]) -> None:
        """Rewrite the files without the rows of these tenants. All their entries until the request are written."""
        if not due:
            return
        from control_plane.request_log.parquet import read, without_tenants, write  # a worker starts without pyarrow

        for file in kept:
            rows = read([self._bucket.get(file.key)])
            left = without_tenants(rows, due)
            if left.num_rows < rows.num_rows:
                self._bucket.put(file.key, write(left))
        for tenant_id in due:
            files.finish_erasure(self._bucket, tenant_id)
            _log.info("request log erased", tenant=tenant_id)
