"""Health routes, open without a key: liveness of the process, and readiness of Postgres, Redis and S3."""

import threading
import time
from collections.abc import Callable
from typing import Annotated, Final, Literal

import msgspec
import structlog
from litestar import Response, get
from litestar.di import NamedDependency
from redis import Redis
from sqlalchemy import Engine, text

from adapters.object_store.s3 import Bucket
from core import fields
from core.fields import about

State = Literal["ok", "unavailable"]

_HOLDS_S: Final = 1.0


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The state of each dependency."""

    postgres: Annotated[State, about("Whether Postgres answers.")]
    redis: Annotated[State, about("Whether Redis answers.")]
    s3: Annotated[State, about("Whether the object store answers.")]


class Liveness(msgspec.Struct, frozen=True, kw_only=True):
    """The process is alive."""

    status: Annotated[Literal["ok"], fields.STATUS] = "ok"


@get("/livez", sync_to_thread=False, tags=["health"], security=[])
def livez() -> Liveness:
    """Liveness: the process answers."""
    return Liveness()


class ReadinessCheck:
    """Asks Postgres, Redis and S3. A result holds for a second, since the route needs no key and S3 bills requests."""

    def __init__(self, engine: Engine, redis: Redis, bucket: Bucket) -> None:
        self._engine = engine
        self._redis = redis
        self._bucket = bucket
        self._guard = threading.Lock()
        self._asked_at = -_HOLDS_S
        self._last = Readiness(postgres="unavailable", redis="unavailable", s3="unavailable")

    def result(self) -> Readiness:
        """The state of each dependency, at most a second old. Threads that ask at once share one question."""
        with self._guard:
            if time.monotonic() - self._asked_at >= _HOLDS_S:
                self._last = Readiness(
                    postgres=_state("postgres", self._ask_postgres),
                    redis=_state("redis", self._redis.ping),
                    s3=_state("s3", lambda: self._bucket.head("uploads/readyz")),
                )
                self._asked_at = time.monotonic()
            return self._last

    def not_ready(self) -> str:
        """The dependencies that do not answer; empty when all do."""
        states = msgspec.structs.asdict(self.result())
        return ", ".join(f"{name} is unavailable" for name, state in states.items() if state != "ok")

    def _ask_postgres(self) -> None:
        with self._engine.connect() as connection:
            connection.execute(text("SELECT 1"))


@get("/readyz", sync_to_thread=True, tags=["health"], security=[])
def readyz(readiness: NamedDependency[ReadinessCheck]) -> Response[Readiness]:
    """Readiness: Postgres, Redis and S3 answer. 503 when one of them does not."""
    return Response(readiness.result(), status_code=503 if readiness.not_ready() else 200)


def _state(name: str, ask: Callable[[], object]) -> State:
    try:
        ask()
    except Exception as error:  # noqa: BLE001 - any error means that the dependency is unavailable
        structlog.get_logger().warning(
            "dependency unavailable", dependency=name, error=str(error).splitlines()[0][:300]
        )
        return "unavailable"
    return "ok"
