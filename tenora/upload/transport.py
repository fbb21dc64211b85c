"""Sends pieces of files to presigned URLs, several side by side, each tried again where that can help.

Which pieces there are is the control plane's word; nothing here knows what they are for.
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
    """A piece could not be sent, however often it was tried."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """So many bytes of a file from an offset on, and the PUT that takes them."""

    path: Path
    offset_bytes: int
    size_bytes: int
    url: str
    headers: dict[str, str]


def pieces_of(folder: Path, uploads: Sequence[dict[str, Any]]) -> list[Piece]:
    """What the control plane asks for: whole files and parts, in its order."""
    return [
        Piece(
            path=folder / upload["path"],
            offset_bytes=each.get("offset_bytes", 0),
            size_bytes=each["size_bytes"],
            url=each["url"],
            headers=each["headers"],
        )
        for upload in uploads
        for each in upload["parts"] or [upload]
    ]


def send(pieces: Sequence[Piece], sent: Callable[[int], None]) -> None:
    """PUT every piece; ``sent`` hears from several threads how many bytes went out, and a negative number for those
    that have to go again. Raises ``SendFailed`` for the first that cannot be sent, once the others at work have ended.
    """
    with httpx.Client(timeout=_TIMEOUT) as http, ThreadPoolExecutor(_PARALLEL) as pool:
        tasks = [pool.submit(_send, http, piece, sent) for piece in pieces]
        done, waiting = wait(tasks, return_when=FIRST_EXCEPTION)
        for task in waiting:
            task.cancel()
        for task in done:
            task.result()


def _send(http: httpx.Client, piece: Piece, sent: Callable[[int], None]) -> None:
    for attempt in range(1, _ATTEMPTS_MAX + 1):
        body = _Body(piece, sent)
        try:
            # With its length in the headers httpx sends an iterator as it is, and not in chunks, which S3 refuses.
            headers = piece.headers | {"content-length": str(piece.size_bytes)}
            answer = http.put(piece.url, content=body, headers=headers)
        except httpx.HTTPError as error:
            failure = f"{type(error).__name__}: {error}"
        else:
            if answer.is_success:
                return
            failure = f"the store answered {answer.status_code}: {answer.text[:200]}"
            if answer.status_code < 500:
                raise SendFailed(f"{piece.path.name}: {failure}")
        sent(-body.sent_bytes)
        if attempt < _ATTEMPTS_MAX:
            time.sleep(_BACKOFF_S * 2**attempt)
    raise SendFailed(f"{piece.path.name}: tried {_ATTEMPTS_MAX} times; {failure}")


class _Body:
    """The bytes of a piece, counted as they are taken."""

    def __init__(self, piece: Piece, sent: Callable[[int], None]) -> None:
        self._piece = piece
        self._sent = sent
        self.sent_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        with self._piece.path.open("rb") as stream:
            stream.seek(self._piece.offset_bytes)
            while left := self._piece.size_bytes - self.sent_bytes:
                chunk = stream.read(min(_CHUNK_BYTES, left))
                if not chunk:
                    raise SendFailed(f"{self._piece.path.name}: it became shorter while it was sent; upload it again")
                self.sent_bytes += len(chunk)
                self._sent(len(chunk))
                yield chunk
