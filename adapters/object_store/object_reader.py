"""Reads the body of one S3 object, or of a range of it, as it arrives.

A read returns what one receive gave, so that a server that trickles is noticed and every read has its timeout. Callers
handle retries, file positions and checksums (``adapters.object_store.ranged_download``,
``adapters.object_store.revision_store``).
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec
from urllib3.exceptions import HTTPError

from adapters import metrics
from adapters.object_store.download_progress import Download
from adapters.object_store.s3 import Bucket, ObjectDamaged, StoreUnavailable, translated

_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_BACKOFF_S: Final = 0.1

T = TypeVar("T")


class ObjectBody(msgspec.Struct, frozen=True):
    """Bytes ``first`` to ``end`` (exclusive) of an object of ``total_bytes``; ``read`` gives b"" after the last."""

    first: int
    end: int
    total_bytes: int
    read: Callable[[int], bytes]


class ObjectReader:
    """Reads from one bucket. Thread-safe."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    @contextmanager
    def open(self, key: str, first: int = 0, end: int | None = None) -> Iterator[ObjectBody]:
        """Open the object, or its bytes ``first`` to ``end``. The body says which bytes came, because a server may
        ignore the range.

        Raises ``ObjectMissing``; ``ObjectDamaged`` when the object ends before ``first``; ``StoreUnavailable``, also in
        reads.
        """
        wanted: Any = {"Range": f"bytes={first}-{'' if end is None else end - 1}"} if first or end is not None else {}
        with translated(key):
            answer = self._bucket.reader.get_object(Bucket=self._bucket.name, Key=key, **wanted)
        with answer["Body"] as stream:
            yield _body(key, answer.get("ContentRange"), answer["ContentLength"], stream)


def _body(key: str, content_range: str | None, length: int, stream: Any) -> ObjectBody:  # Any: botocore's raw stream
    def read(bytes_max: int) -> bytes:
        try:
            return bytes(stream.read1(bytes_max))
        except (HTTPError, OSError) as error:
            raise StoreUnavailable(f"the object store broke off in the middle of {key}", kind="silent") from error

    if content_range is None:
        return ObjectBody(0, length, length, read)
    if (match := _CONTENT_RANGE.fullmatch(content_range)) is None:
        raise ObjectDamaged(f"{key} came with the range {content_range!r}, which says nothing")
    return ObjectBody(int(match[1]), int(match[2]) + 1, int(match[3]), read)


def with_attempts(download: Download, attempts_max: int, attempt: Callable[[], T]) -> T:
    """The result of ``attempt``, called again after transient failures. Raises its last error, or the error that ends
    the download.
    """
    for number in range(1, attempts_max):
        try:
            return attempt()
        except StoreUnavailable as error:
            if error.kind == "refused":
                raise
            metrics.DOWNLOAD_RETRIES.labels(error.kind).inc()
        download.pause(_BACKOFF_S * 2 ** (number - 1))
    return attempt()
