"""Measures the request log on a Valkey and an S3 (rclone) of its own: how late a row is in S3 at 1,000 requests a
second, and how long queries of one tenant take over ten million rows of one day.

Run: ``python -m benchmarks.request_log``. ``--rows-per-file 5000`` queries files as the writer makes them, unmerged.
Prints each goal with its figure, and writes JSON; exits with status 1 when a goal is missed.
"""

import json
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import numpy as np
import pyarrow as pa
from pydantic import SecretStr
from redis import Redis

from adapters.object_store.s3 import Bucket
from adapters.settings import StoreSettings
from control_plane.request_log import parquet
from control_plane.request_log.files import EntryId, RequestLogFile
from control_plane.request_log.query_engine import EmbeddedClickHouse
from control_plane.request_log.service import RequestFilter, RequestLogReader
from control_plane.request_log.writer import RequestLogWriter
from control_plane.settings import RequestLogSettings
from core import clock, redis_keys
from core.contracts.request_log import RequestDetails
from core.contracts.usage import UsageEvent
from core.ids import first_id_of_ms, new_id
from core.settings import S3Settings
from tenora.stack import embedded_servers
from tenora.stack.program import free_port
from tests.conftest import running, running_valkey

RATE: Final = 1_000
TENANTS: Final = 1_000
GOALS: Final = {"p99 lag in seconds at 1,000 requests a second": 5.0, "p95 of a query over 10 M rows, seconds": 2.0}
_ALPHABET: Final = np.frombuffer(b"0123456789abcdefghjkmnpqrstvwxyz", dtype="S1")
_S3_SECRET: Final = secrets.token_hex(8)
_ROUND_S: Final = 1.0  # as in the worker


class _TimedWriter(RequestLogWriter):
    """Notes how old each entry is when it has been stored."""

    lags_ms: list[int]

    def _acknowledge(self, ids: Sequence[bytes]) -> None:
        now_ms = clock.now_ms()
        self.lags_ms += [now_ms - EntryId.of(each).ms for each in ids]
        super()._acknowledge(ids)


@contextmanager
def servers() -> Iterator[tuple[Redis, Bucket, S3Settings]]:
    """A Valkey and a bucket."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        s3 = embedded_servers.s3(
            home / "s3", home, port=free_port(), access_key="bench", secret_key=_S3_SECRET, bucket="tenora"
        )
        settings = S3Settings(s3_endpoint=s3.url, s3_access_key="bench", s3_secret_key=SecretStr(_S3_SECRET))
        with running_valkey(home / "valkey") as url, running(s3.program), Redis.from_url(url) as redis:
            yield redis, Bucket(settings, StoreSettings()), settings


def lag_p99_s(redis: Redis, bucket: Bucket, seconds: int) -> float:
    """The 99th percentile of a row's time from its entry until it is in S3, while 1,000 come each second."""
    writer = _TimedWriter(redis, bucket, entries_max=RequestLogSettings().request_log_batch_max)
    writer.lags_ms = []
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set() or redis.xlen(redis_keys.REQUEST_LOG):
            if not writer.run_once():
                time.sleep(_ROUND_S)

    thread = threading.Thread(target=write)
    thread.start()
    due = time.monotonic()
    for _ in range(seconds * 10):
        with redis.pipeline(transaction=False) as pipe:
            for _ in range(RATE // 10):
                pipe.xadd(redis_keys.REQUEST_LOG, _entry())
            pipe.execute()
        due += 0.1
        time.sleep(max(0.0, due - time.monotonic()))
    ended.set()
    thread.join()
    assert len(writer.lags_ms) == seconds * RATE, "a row is lost or doubled"
    return sorted(writer.lags_ms)[int(len(writer.lags_ms) * 0.99)] / 1000


def _entry() -> dict[Any, Any]:
    now_ms = clock.now_ms()
    event = UsageEvent(
        request_id=new_id("req"), tenant_id="tn_a", key_id="key_a", base_model="base", adapter_id="ad_a",
        revision_id="rev_a", replica_id="rep_one", outcome="done", started_at_ms=now_ms - 900, settled_at_ms=now_ms,
        input_tokens=10, cached_tokens=0, output_tokens=5, kv_page_ms=0, first_token_ms=300, duration_ms=1000,
    )  # fmt: skip
    details = RequestDetails(model="bot", wait_ms=4, prefill_ms=60, itl_p95_ms=9, finish_reason="stop", price_nanos=7)
    return {"event": msgspec.json.encode(event), "details": msgspec.json.encode(details)}


def fill(bucket: Bucket, count: int, rows_per_file: int, day: datetime) -> int:
    """So many rows over one day, in files of this size as merges leave them. Returns their bytes."""
    random, size, made = np.random.default_rng(1), 0, 0
    while made < count:
        number = min(rows_per_file, count - made)
        began = clock.to_ms(day) + made * 86_400_000 // count
        table = _table(random, number, began, 86_400_000 * number // count)
        file = RequestLogFile(day.date().isoformat(), EntryId(began, 0), EntryId(began, made + 1), level=1)
        body = parquet.write(table)
        bucket.put(file.key, body)
        size, made = size + len(body), made + number
    return size


def _table(random: np.random.Generator, count: int, began_ms: int, lasts_ms: int) -> pa.Table:
    """Rows of a thousand tenants, the largest of which has a sixth."""
    ms = np.sort(random.integers(0, lasts_ms, count)) + began_ms
    starts = {int(each): first_id_of_ms("req", int(each))[:14] for each in np.unique(ms)}
    ends = _ALPHABET[random.integers(0, 32, (count, 16))].view("S16").ravel().astype(str)
    tenant = (random.zipf(1.2, count) - 1) % TENANTS + 1
    whole = random.lognormal(7, 1, count).astype(np.int64)
    refused = random.random(count) < 0.05
    columns: dict[str, Any] = {
        "request_id": [starts[int(each)] + end for each, end in zip(ms, ends, strict=True)],
        "time": pa.array(ms, pa.timestamp("ms", tz="UTC")),
        "outcome": np.where(refused, "refused", "done"),
        "tenant_id": np.char.add("tn_", tenant.astype(str)),
        "key_id": np.char.add("key_", tenant.astype(str)),
        "model": np.char.add("bot-", (tenant % 7).astype(str)),
        "base_model": np.full(count, "base"),
        "adapter_id": np.char.add("ad_", tenant.astype(str)),
        "code": pa.array(np.full(count, "rate_limit_exceeded"), mask=~refused),
        "whole_ms": whole,
        "estimated": np.zeros(count, dtype=bool),
        "count": np.ones(count, dtype=np.int64),
    }
    for name in ("prompt_tokens", "completion_tokens", "wait_ms", "load_ms", "prefill_ms", "ttft_ms", "price_nanos"):
        columns[name] = random.integers(0, 4096, count)
    return parquet.in_schema(columns, count)


def query_p95_s(reader: RequestLogReader, day: datetime, repeats: int) -> tuple[float, dict[str, float]]:
    """The 95th percentile over all kinds of query for tenants of all sizes, and the median of each kind."""
    end = day + timedelta(days=1)
    kinds = {
        "newest": RequestFilter(start=day, end=end),
        "slowest": RequestFilter(start=day, end=end, sort="slowest"),
        "refused": RequestFilter(start=day, end=end, outcome="refused", code="rate_limit_exceeded"),
        "slow of a model": RequestFilter(start=day, end=end, model="bot-1", whole_ms_min=5000),
    }
    took: dict[str, list[float]] = {name: [] for name in (*kinds, "one by its id")}
    for tenant in ["tn_1", "tn_2", "tn_30", "tn_700"] * repeats:
        for name, wanted in kinds.items():
            began = time.perf_counter()
            page = reader.page(tenant, wanted, cursor=None, limit=50)
            took[name].append(time.perf_counter() - began)
            assert page.data or name != "newest"
        newest = reader.page(tenant, kinds["newest"], cursor=None, limit=1).data[0]
        began = time.perf_counter()
        reader.one(tenant, newest.request_id)
        took["one by its id"].append(time.perf_counter() - began)
    every = sorted(each for several in took.values() for each in several)
    return every[int(len(every) * 0.95)], {name: sorted(several)[len(several) // 2] for name, several in took.items()}


@click.command()
@click.option("--seconds", default=60, help="How long 1,000 requests a second come.")
@click.option("--rows", "count", default=10_000_000, help="Rows to query.")
@click.option("--rows-per-file", default=200_000, help="Rows of one file; merges make files of this size.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Where the figures are written.")
def main(seconds: int, count: int, rows_per_file: int, out: Path | None) -> None:
    """Measure both, and compare them with their goals."""
    yesterday = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    with servers() as (redis, bucket, s3):
        figures = dict(zip(GOALS, (lag_p99_s(redis, bucket, seconds), 0.0), strict=True))
        print("filling")
        size = fill(bucket, count, rows_per_file, yesterday)
        reader = RequestLogReader(bucket, s3, EmbeddedClickHouse(), RequestLogSettings())
        reader.page("tn_1", RequestFilter(), cursor=None, limit=1)  # loads the engine
        p95_s, medians = query_p95_s(reader, yesterday, repeats=5)
    figures["p95 of a query over 10 M rows, seconds"] = p95_s
    detail = {"bytes a row": size / count, "medians of queries, seconds": medians, "rows a file": rows_per_file}
    missed = [name for name, goal in GOALS.items() if figures[name] > goal]
    for name, figure in figures.items():
        print(f"{name}: {figure:.2f} (goal <= {GOALS[name]:g})")
    print(json.dumps(detail, indent=1))
    if out is not None:
        out.write_text(json.dumps({"figures": figures, **detail}, indent=1))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
