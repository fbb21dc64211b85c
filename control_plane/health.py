"""Health routes, open without a key: liveness of the process, and readiness of Postgres, Redis and S3."""

from collections.abc import Callable
from typing import Literal

import msgspec
import structlog
from litestar import Response, get
from litestar.di import NamedDependency
from redis import Redis
from sqlalchemy import Engine, text

from adapters.object_store.s3 import Bucket

State = Literal["ok", "unavailable"]


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The state of each dependency."""

    postgres: State
    redis: State
    s3: State


class Liveness(msgspec.Struct, frozen=True, kw_only=True):
    """The process is alive."""

    status: Literal["ok"] = "ok"


@get("/healthz", sync_to_thread=False, tags=["health"], security=[])
def healthz() -> Liveness:
    """Liveness: the process answers."""
    return Liveness()


@get("/readyz", sync_to_thread=True, tags=["health"], security=[])
def readyz(
    engine: NamedDependency[Engine], redis: NamedDependency[Redis], objects: NamedDependency[Bucket]
) -> Response[Readiness]:
    """Readiness: Postgres, Redis and S3 answer. 503 when one of them does not."""

    def ask_postgres() -> None:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    ready = Readiness(
        postgres=_state("postgres", ask_postgres),
        redis=_state("redis", redis.ping),
        s3=_state("s3", lambda: objects.head("uploads/readyz")),
    )
    good = ready == Readiness(postgres="ok", redis="ok", s3="ok")
    return Response(ready, status_code=200 if good else 503)


def _state(name: str, ask: Callable[[], object]) -> State:
    try:
        ask()
    except Exception as error:  # noqa: BLE001 - any error means that the dependency is unavailable
        structlog.get_logger().warning(
            "dependency unavailable", dependency=name, error=str(error).splitlines()[0][:300]
        )
        return "unavailable"
    return "ok"
