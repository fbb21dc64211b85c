"""Connects the control plane to Redis. Postgres is reached through ``core.db``, S3 through
``adapters.object_store.revision_store``.
"""

from redis import Redis

_TIMEOUT_S = 2


def open_redis(url: str) -> Redis:
    """A client whose calls wait at most two seconds, then raise; nobody retries for the caller."""
    return Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)
