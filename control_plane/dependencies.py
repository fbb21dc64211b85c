"""The dependencies that route handlers ask for by name. ``app`` builds the objects; this module passes them on,
connects the handlers of changes and opens the client of Redis.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from litestar import Request
from litestar.di import Provide
from litestar.params import HeaderParameter
from redis import Redis
from sqlalchemy import Engine
from sqlmodel import Session

from adapters.object_store.s3 import Bucket
from adapters.settings import UploadSettings
from billing.costs.settings import CostSettings
from billing.documents.pdf_maker import PdfMaker
from billing.settings import InvoiceSettings
from control_plane.auth.authenticate import Pepper, Principal
from control_plane.batches.api import UploadSlots
from control_plane.change_handlers import ChangeHandlers
from control_plane.health import ReadinessCheck
from control_plane.idempotency.service import IdempotentRequest, digest_of
from control_plane.members.invitation_mail import InvitationMail
from control_plane.notifications.rules import NotificationRules
from control_plane.payments.service import PaymentAccess
from control_plane.registry import base_models
from control_plane.registry.adapters import pins
from control_plane.registry.providers.rules import ProviderRules
from control_plane.registry.revisions import rank_classes
from control_plane.registry.revisions.uploads import Uploads
from control_plane.registry.revocations import service as revocations
from control_plane.request_log.service import RequestLogReader
from control_plane.settings import BatchSettings, ConsoleSettings, WebSettings
from control_plane.tenants import service as tenants

_REDIS_TIMEOUT_S = 2

_IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        description="1 to 255 printable ASCII characters. A second request with the same key gets the first response "
        "again.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The objects that one web process holds open. ``reports`` has a small pool of its own, so that slow reports leave
    ``engine``'s connections to all other requests.
    """

    engine: Engine
    reports: Engine
    redis: Redis
    bucket: Bucket
    uploads: Uploads
    readiness: ReadinessCheck
    pepper: Pepper
    web: WebSettings
    upload: UploadSettings
    notification_rules: NotificationRules
    provider_rules: ProviderRules
    costs: CostSettings
    invoices: InvoiceSettings
    pdf_maker: PdfMaker
    payments: PaymentAccess
    request_log: RequestLogReader
    batches: BatchSettings
    console: ConsoleSettings
    invitation_mail: InvitationMail


def open_redis(url: str) -> Redis:
    """A client whose calls wait at most two seconds and then raise. It does not retry."""
    return Redis.from_url(url, socket_timeout=_REDIS_TIMEOUT_S, socket_connect_timeout=_REDIS_TIMEOUT_S)


def providers(resources: Resources) -> dict[str, Provide]:
    """The dependencies of every route handler, by name."""

    def principal(request: Request[Any, Any, Any]) -> Principal:
        found = request.scope["auth"]
        assert isinstance(found, Principal), "a guard has authenticated the request"
        return found

    async def idempotent(request: Request[Any, Any, Any], idempotency_key: _IdempotencyKey = None) -> IdempotentRequest:
        return IdempotentRequest(
            resources.engine,
            caller=principal(request).caller,
            key=idempotency_key,
            request_sha256=await digest_of(request),
        )

    def url_of_console(request: Request[Any, Any, Any]) -> str:
        return console_url(resources.console, request)

    async def raw_body(request: Request[Any, Any, Any]) -> bytes:
        return await request.body()

    held = {
        "engine": resources.engine,
        "reports": resources.reports,
        "redis": resources.redis,
        "objects": resources.bucket,  # not "bucket", which is a query parameter of usage reports
        "uploads": resources.uploads,
        "readiness": resources.readiness,
        "pepper": resources.pepper,
        "web": resources.web,
        "upload": resources.upload,
        "notification_rules": resources.notification_rules,
        "provider_rules": resources.provider_rules,
        "adapter_classes": rank_classes.adapters_by_class,
        "rank_classes": base_models.rank_classes,
        "cost_settings": resources.costs,
        "invoice_rules": resources.invoices,
        "pdf_maker": resources.pdf_maker,
        "payment_access": resources.payments,
        "request_log": resources.request_log,
        "batch_settings": resources.batches,
        "console_settings": resources.console,
        "upload_slots": UploadSlots(resources.batches.batch_uploads_max),
        "invitation_mail": resources.invitation_mail,
    }
    return {name: _constant(value) for name, value in held.items()} | {
        "change_handlers": Provide(handlers_of_changes, sync_to_thread=False),
        "principal": Provide(principal, sync_to_thread=False),
        "idempotent": Provide(idempotent),
        "raw_body": Provide(raw_body),
        "console_url": Provide(url_of_console, sync_to_thread=False),
    }


def console_url(settings: ConsoleSettings, request: Request[Any, Any, Any]) -> str:
    """The address at which browsers reach the console, without a slash at its end."""
    return (settings.control_public_url or str(request.base_url)).rstrip("/")


def handlers_of_changes() -> ChangeHandlers:
    """The rooms that react to changes of tenants and plans."""
    return ChangeHandlers(
        on_limits_changed=pins.refresh_tenants, on_plan_changed=_on_plan_changed, on_status_set=_on_status_set
    )


def _constant(value: object) -> Provide:
    def provide() -> Any:
        return value

    return Provide(provide, sync_to_thread=False)


def _on_plan_changed(session: Session, plan_id: str) -> None:
    pins.refresh_tenants(session, tenants.publish_tenants_of_plan(session, plan_id), bulk=True)


def _on_status_set(session: Session, tenant_id: str, status: tenants.Status) -> None:
    revocations.apply_tenant_status(session, tenant_id, status)
