"""What handlers may ask for by name, and where it comes from. Everything here was built by ``app`` and is passed on."""

from dataclasses import dataclass
from typing import Annotated, Any

from litestar import Request
from litestar.di import Provide
from litestar.params import HeaderParameter
from redis import Redis
from sqlalchemy import Engine

from adapters.object_store.s3 import Bucket
from adapters.settings import UploadSettings
from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import Once, digest_of
from control_plane.registry.revisions.uploads import Uploads
from control_plane.settings import WebSettings

_IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        description="1 to 255 printable ASCII characters; sent again, the first answer is replayed.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Pepper:
    """The secret that API keys are hashed with; a type of its own, so that it is never printed or mixed up."""

    value: bytes

    def __repr__(self) -> str:
        return "Pepper(…)"


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one web process holds open."""

    engine: Engine
    redis: Redis
    bucket: Bucket
    uploads: Uploads
    pepper: Pepper
    web: WebSettings
    upload: UploadSettings


def providers(resources: Resources) -> dict[str, Provide]:
    """The dependencies of every handler."""

    def engine() -> Engine:
        return resources.engine

    def redis() -> Redis:
        return resources.redis

    def objects() -> Bucket:  # not "bucket": reports take that as a query parameter
        return resources.bucket

    def uploads() -> Uploads:
        return resources.uploads

    def pepper() -> Pepper:
        return resources.pepper

    def web() -> WebSettings:
        return resources.web

    def upload() -> UploadSettings:
        return resources.upload

    def principal(request: Request[Any, Any, Any]) -> Principal:
        found = request.scope["auth"]
        assert isinstance(found, Principal), "a guard has authenticated the request"
        return found

    async def once(request: Request[Any, Any, Any], idempotency_key: _IdempotencyKey = None) -> Once:
        return Once(
            resources.engine,
            caller=principal(request).caller,
            key=idempotency_key,
            request_sha256=await digest_of(request),
        )

    plain = {
        function.__name__: function for function in (engine, redis, objects, uploads, pepper, web, upload, principal)
    }
    return {name: Provide(function, sync_to_thread=False) for name, function in plain.items()} | {"once": Provide(once)}
