"""The errors of the adapter cache. Each concerns one adapter; the others are still served.

Errors of the store itself (``ObjectMissing``, ``ObjectDamaged``, ``store_unavailable``) are in
``adapters.object_store.s3``.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from core.errors import Unavailable

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DISK_RETRY_S: Final = 30  # an operator must free space or repair the disk


class AdapterStillLoading(Unavailable):
    """The adapter still downloads, or waits for its turn, at the caller's deadline. The download continues.
    ``eta_s`` is the estimated time until it is complete.
    """

    default_code = "adapter_loading"

    def __init__(self, message: str, *, eta_s: float, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s, retryable=True)
        self.eta_s = eta_s


class CacheFull(Unavailable):
    """The disk has no space for the adapter next to those that engines may still read."""

    default_code = "adapter_cache_full"


class CacheFailed(Unavailable):
    """The disk cannot be read or written."""

    default_code = "adapter_cache_failed"


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Translate ``OSError`` into errors with a code."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise cache_full(what) from error
        reason = error.strerror or str(error)
        raise CacheFailed(
            f"the adapter cache's disk failed for {what}: {reason}; check the disk of TENORA_CACHE_DIR",
            retry_after_s=_DISK_RETRY_S,
        ) from error


def cache_full(what: str) -> CacheFull:
    """The error for one adapter that does not fit on the disk."""
    return CacheFull(
        f"the adapter cache's disk has no room for {what}; give TENORA_CACHE_DIR more space, "
        "or serve fewer adapters at once on this replica",
        retry_after_s=_DISK_RETRY_S,
    )
