"""Runs a POST once per ``Idempotency-Key``: the response is stored in the transaction of the effect and replayed.

Only successful responses are stored; a refused request changed nothing and may be sent again. A stored response never
holds a secret: the caller that creates one passes what to store instead. Fails closed: without Postgres there is no
effect either.
"""

import hashlib
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

import msgspec
from litestar import Request, Response
from psycopg.errors import LockNotAvailable
from sqlalchemy import Engine, delete, exc, func, update
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col

from control_plane.idempotency.models import IdempotentResponse
from core.db import unit_of_work
from core.errors import Conflict, InvalidRequest, Unprocessable

T = TypeVar("T")

KEY: Final = re.compile("^[!-~]{1,255}$")
REPLAYED = {"idempotent-replayed": "true"}


class IdempotentRequest:
    """One POST of one caller, with or without an ``Idempotency-Key``."""

    def __init__(self, engine: Engine, *, caller: str, key: str | None, request_sha256: str) -> None:
        if key is not None and not KEY.fullmatch(key):
            raise InvalidRequest(
                "Idempotency-Key: use 1 to 255 printable ASCII characters without spaces.", param="idempotency-key"
            )
        self._engine = engine
        self._caller = caller
        self._key = key
        self._request_sha256 = request_sha256

    def run(
        self,
        effect: Callable[[Session], T],
        *,
        status_code: int = 201,
        stored: Callable[[T], T] | None = None,
        replayed: Callable[[Session, bytes], T] | None = None,
    ) -> Response[T]:
        """Run ``effect`` in one transaction and respond with its result, or replay the first response.

        ``stored`` removes secrets from the result before it is stored; ``replayed`` builds a full response from the
        stored one. Raises Unprocessable when the key was used for another request, and Conflict while the first request
        is still running.
        """
        with unit_of_work(self._engine) as session:
            if self._key is not None and not self._claim(session):
                first = self._first(session)
                assert first.body is not None, "stored in the transaction that inserted the row"
                # The stored body is sent unchanged: Litestar does not encode bytes again.
                body = replayed(session, first.body) if replayed else cast("T", first.body)
                return Response(body, status_code=first.status_code, media_type="application/json", headers=REPLAYED)
            result = effect(session)
            if self._key is not None:
                session.flush()
                self._keep(session, status_code, msgspec.json.encode(stored(result) if stored else result))
        return Response(result, status_code=status_code)

    def _claim(self, session: Session) -> bool:
        """Whether this is the first request with the key. Waits for a concurrent request up to the lock timeout."""
        claim = (
            insert(IdempotentResponse)
            .values(caller=self._caller, key=self._key, request_sha256=self._request_sha256, created_at=func.now())
            .on_conflict_do_nothing()
            .returning(col(IdempotentResponse.key))
        )
        try:
            return session.execute(claim).first() is not None
        except exc.OperationalError as error:
            if isinstance(error.orig, LockNotAvailable):
                raise Conflict(
                    "A request with this Idempotency-Key is still running. Try again.", code="request_in_progress"
                ) from error
            raise

    def _first(self, session: Session) -> IdempotentResponse:
        first = session.get(IdempotentResponse, (self._caller, self._key))
        if first is None:  # the row expired between the two statements
            raise Conflict("The Idempotency-Key has just expired. Try again.", code="request_in_progress")
        if first.request_sha256 != self._request_sha256:
            raise Unprocessable(
                "Idempotency-Key: this key was used for another request. Use a new key for each request.",
                code="idempotency_key_reused",
                param="idempotency-key",
            )
        return first

    def _keep(self, session: Session, status_code: int, body: bytes) -> None:
        session.execute(
            update(IdempotentResponse)
            .where(col(IdempotentResponse.caller) == self._caller, col(IdempotentResponse.key) == self._key)
            .values(status_code=status_code, body=body)
        )


async def digest_of(request: Request[Any, Any, Any]) -> str:
    """A digest of method, path with query, and body: equal for equal requests."""
    target = f"{request.method} {request.url.path}?{request.url.query}\n"
    return hashlib.sha256(target.encode() + await request.body()).hexdigest()


def remove_expired(session: Session, expires_s: int) -> int:
    """Delete responses older than ``expires_s``. Returns their number."""
    old = delete(IdempotentResponse).where(
        col(IdempotentResponse.created_at) < func.now() - timedelta(seconds=expires_s)
    )
    return cast("int", session.execute(old).rowcount)  # type: ignore[attr-defined] # a DELETE's result has it
