"""What an operator's command prints when Postgres or Redis cannot be reached: one line that names the setting.

Long-running processes do not use it: they retry, or log the exception with its traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import ConnectionError as RedisUnreachable
from redis.exceptions import TimeoutError as RedisTimeout
from sqlalchemy.exc import OperationalError

from core.errors import Unavailable


@contextmanager
def named_when_unreachable() -> Iterator[None]:
    """Raises Unavailable, which names the store and its setting, for a client's error of the connection. Other
    errors of Postgres, such as a lock that was not granted, pass.
    """
    try:
        yield
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) is not None:
            raise
        raise _unreachable("Postgres", "TENORA_POSTGRES_DSN", error.orig) from error
    except (RedisUnreachable, RedisTimeout) as error:
        raise _unreachable("Redis", "TENORA_REDIS_URL", error) from error


def _unreachable(store: str, setting: str, error: BaseException | None) -> Unavailable:
    reason = str(error).strip().splitlines()[0].rstrip(".")
    return Unavailable(f"{store} cannot be reached: {reason}. Set {setting} to its address.")
