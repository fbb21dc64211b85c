"""Routes of API keys: a tenant's over its own keys, and an admin's that creates a key for a tenant."""

from litestar import Controller, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine
from sqlmodel import Session

from control_plane.api_keys import service
from control_plane.api_keys.schemas import ApiKeyCreated, ApiKeyView, KeyRotation, NewApiKey
from control_plane.auth.authenticate import Pepper, Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page, PageCursor, PageLimit
from control_plane.settings import WebSettings
from control_plane.tenants import service as tenants
from core.api_keys import ALL_SCOPES
from core.db import unit_of_work


class ApiKeys(Controller):
    """The API keys of the calling tenant."""

    path = "/api-keys"
    tags = ("API keys",)
    opt = {"scope": "keys:write"}  # noqa: RUF012 - Litestar's own attribute, copied by it

    @post(sync_to_thread=True)
    def create_api_key(
        self,
        data: JSONBody[NewApiKey],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        pepper: NamedDependency[Pepper],
        web: NamedDependency[WebSettings],
    ) -> Response[ApiKeyCreated]:
        """Create an API key with at most the scopes of the calling key, and with limits, models and an end of its own
        where given. Only this response contains the secret; a replay for an Idempotency-Key has `key: null`.
        """
        scopes: tuple[str, ...] = data.scopes or tuple(principal.scopes)
        service.require_grantable(principal, scopes)
        return idempotent.run(
            lambda session: service.mint(
                session,
                pepper.value,
                tenant_id=principal.own_tenant_id,
                new=data,
                scopes=scopes,
                live_max=web.api_keys_max,
                actor=principal.key_id,
            ),
            stored=service.without_secret,
        )

    @get(sync_to_thread=True)
    def list_api_keys(
        self,
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[ApiKeyView]:
        """List the tenant's keys, including revoked ones, newest first."""
        with unit_of_work(engine) as session:
            return service.list_keys(session, tenant_id=principal.own_tenant_id, cursor=cursor, limit=limit)

    @get("/{key_id:str}", sync_to_thread=True)
    def get_api_key(
        self, key_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> ApiKeyView:
        """Get one key."""
        with unit_of_work(engine) as session:
            return service.get_key(session, tenant_id=principal.own_tenant_id, key_id=key_id)

    @post("/{key_id:str}/rotate", sync_to_thread=True)
    def rotate_api_key(
        self,
        key_id: FromPath[str],
        data: JSONBody[KeyRotation],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        pepper: NamedDependency[Pepper],
    ) -> Response[ApiKeyCreated]:
        """Give a key a new secret under the same id, so that its limits and its usage go on. The secret before it stays
        valid for the `overlap`. Only this response contains the new one; a replay for an Idempotency-Key has
        `key: null`.
        """
        return idempotent.run(
            lambda session: service.rotate(session, pepper.value, principal, key_id, data.overlap),
            stored=service.without_secret,
        )

    @delete("/{key_id:str}", sync_to_thread=True)
    def revoke_api_key(
        self, key_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> None:
        """Revoke a key permanently. When the answer says 204, every live gateway refuses it."""
        with unit_of_work(engine) as session:
            service.revoke(session, tenant_id=principal.own_tenant_id, key_id=key_id, actor=principal.key_id)


class TenantApiKeys(Controller):
    """The keys of one tenant, for an admin."""

    path = "/tenants/{tenant_id:str}/api-keys"
    tags = ("admin: tenants",)

    @get(sync_to_thread=True)
    def list_tenant_api_keys(
        self,
        tenant_id: FromPath[str],
        engine: NamedDependency[Engine],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[ApiKeyView]:
        """List a tenant's keys, including revoked ones, newest first."""
        with unit_of_work(engine) as session:
            tenants.require(session, tenant_id)
            return service.list_keys(session, tenant_id=tenant_id, cursor=cursor, limit=limit)

    @post(sync_to_thread=True)
    def create_tenant_api_key(
        self,
        tenant_id: FromPath[str],
        data: JSONBody[NewApiKey],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        pepper: NamedDependency[Pepper],
        web: NamedDependency[WebSettings],
    ) -> Response[ApiKeyCreated]:
        """Create an API key for a tenant. Only this response contains the secret; a replay for an Idempotency-Key has
        `key: null`.
        """

        def mint(session: Session) -> ApiKeyCreated:
            return service.mint(
                session,
                pepper.value,
                tenant_id=tenant_id,
                new=data,
                scopes=data.scopes or ALL_SCOPES,
                live_max=web.api_keys_max,
                actor=principal.key_id,
            )

        return idempotent.run(mint, stored=service.without_secret)
