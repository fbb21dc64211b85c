"""Sends parts of files to presigned URLs, several in parallel, and retries where a retry can help.

The control plane names the parts. This module does not know their purpose.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

_PARALLEL: Final = 4
_ATTEMPTS_MAX: Final = 4
_BACKOFF_S: Final = 0.5
_CHUNK_BYTES: Final = 256 * 1024
_TIMEOUT: Final = httpx.Timeout(60, connect=10)


class SendFailed(Exception):
    """A part could not be sent after every retry."""


@dataclass(frozen=True, kw_only=True)
class OutgoingPart:
    """``size_bytes`` of a file from ``offset_bytes`` on, and the URL and headers of its PUT."""

    path: Path
    offset_bytes: int
    size_bytes: int
    url: str
    headers: dict[str, str]


def parts_of(folder: Path, uploads: Sequence[dict[str, Any]]) -> list[OutgoingPart]:
    """The parts that the control plane asks for, in its order. A small file is one part."""
    return [
        OutgoingPart(
            path=folder / upload["path"],
            offset_bytes=each.get("offset_bytes", 0),
            size_bytes=each["size_bytes"],
            url=each["url"],
            headers=each["headers"],
        )
        for upload in uploads
        for each in upload["parts"] or [upload]
    ]


def send(parts: Sequence[OutgoingPart], sent: Callable[[int], None]) -> None:
    """PUT every part. Several threads call ``sent`` with the bytes just sent, and with a negative number for bytes that
    must be sent again. Raises ``SendFailed`` for the first part that fails, after the running ones have ended.
    """
    with httpx.Client(timeout=_TIMEOUT) as http, ThreadPoolExecutor(_PARALLEL) as pool:
        tasks = [pool.submit(_send, http, part, sent) for part in parts]
        done, waiting = wait(tasks, return_when=FIRST_EXCEPTION)
        for task in waiting:
            task.cancel()
        for task in done:
            task.result()


def _send(http: httpx.Client, part: OutgoingPart, sent: Callable[[int], None]) -> None:
    for attempt in range(1, _ATTEMPTS_MAX + 1):
        body = _Body(part, sent)
        try:
            # With its length in the headers httpx sends an iterator as it is, and not in chunks, which S3 refuses.
            headers = part.headers | {"content-length": str(part.size_bytes)}
            answer = http.put(part.url, content=body, headers=headers)
        except httpx.HTTPError as error:
            failure = f"{type(error).__name__}: {error}"
        else:
            if answer.is_success:
                return
            failure = f"the store answered {answer.status_code}: {answer.text[:200]}"
            if answer.status_code < 500:
                raise SendFailed(f"{part.path.name}: {failure}")
        sent(-body.sent_bytes)
        if attempt < _ATTEMPTS_MAX:
            time.sleep(_BACKOFF_S * 2**attempt)
    raise SendFailed(f"{part.path.name}: tried {_ATTEMPTS_MAX} times; {failure}")


class _Body:
    """The bytes of a part, counted as they are taken."""

    def __init__(self, part: OutgoingPart, sent: Callable[[int], None]) -> None:
        self._part = part
        self._sent = sent
        self.sent_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        with self._part.path.open("rb") as stream:
            stream.seek(self._part.offset_bytes)
            while left := self._part.size_bytes - self.sent_bytes:
                chunk = stream.read(min(_CHUNK_BYTES, left))
                if not chunk:
                    raise SendFailed(f"{self._part.path.name}: it became shorter while it was sent; upload it again")
                self.sent_bytes += len(chunk)
                self._sent(len(chunk))
                yield chunk
