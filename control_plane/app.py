"""Builds the control plane's web application out of its rooms, and serves it with uvicorn. Wiring only: every decision
lives in a room.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import uvicorn
from litestar import Litestar, Router
from litestar.types import ASGIApp

from adapters.object_store.s3 import Bucket
from adapters.object_store.upload_store import UploadStore
from billing.documents.pdf_maker import PdfMaker
from control_plane import dollars, metrics, tenant_scope
from control_plane.acknowledged_answers import AcknowledgedAnswers
from control_plane.api_keys import service as api_keys
from control_plane.api_keys.api import ApiKeys, TenantApiKeys
from control_plane.audit_trail.api import AdminAuditEvents, OwnAuditEvents
from control_plane.auth.authenticate import Authenticator, Pepper
from control_plane.auth.guards import admin_key, tenant_key
from control_plane.batches.api import AdminBatches, Batches, Files, short_batch
from control_plane.console.app import console_router
from control_plane.cors import cors_rules
from control_plane.costs.api import AdminCosts
from control_plane.credits.api import AdminCredits, OwnCredits
from control_plane.dependencies import Resources, open_redis, providers
from control_plane.documents.api import (
    AdminCreditNoteDocuments,
    AdminInvoiceDocuments,
    OwnCreditNoteDocuments,
    OwnInvoiceDocuments,
)
from control_plane.errors import HANDLERS
from control_plane.fleet.api import AdminCordons, AdminReplicas
from control_plane.groups.api import AdminModelGroups, ModelGroups
from control_plane.health import ReadinessCheck, livez, readyz
from control_plane.http_protocol import protocol_for
from control_plane.invoices.api import AdminBilling, OwnInvoices
from control_plane.invoices.documents_api import AdminCorrections, AdminParties, OwnDocuments
from control_plane.limits.api import AdminSpending, SpendLimits
from control_plane.members.api import AdminPeople, Invitations, Members
from control_plane.members.device_api import DeviceLogins, DeviceSignIns
from control_plane.members.invitation_mail import InvitationMail
from control_plane.notifications.api import NotificationDeliveries, NotificationEndpoints
from control_plane.notifications.rules import NotificationRules
from control_plane.openapi import describe_api, describe_problems
from control_plane.payments.api import AdminPayments, OwnPayments, pay_invoice, stripe_webhook
from control_plane.payments.service import PaymentAccess
from control_plane.plans.api import AdminPlans
from control_plane.pools.api import AdminDemand, AdminPools
from control_plane.publishing.api import Changes
from control_plane.publishing.gateway_ack import AckWaiter
from control_plane.publishing.outbox import outbox_age_s
from control_plane.reconciliation.api import AdminReconciliations, AdminRequestUsage, AdminTenantLedger
from control_plane.registry.adapters.api import Adapters, Aliases, TenantAdapters
from control_plane.registry.api import BaseModels, admin_base_models
from control_plane.registry.providers.api import AdminProviders
from control_plane.registry.providers.rules import ProviderRules
from control_plane.registry.revisions.api import AdminRankClasses, Revisions
from control_plane.registry.revisions.uploads import Uploads
from control_plane.registry.revocations.api import AdapterDeletion, AdminRevocations, OwnRevocations
from control_plane.request_decoding import StrictRequest, refuse_unknown_parameters
from control_plane.request_log.api import OwnRequests, TenantRequests
from control_plane.request_log.query_engine import query_engine
from control_plane.request_log.service import RequestLogReader
from control_plane.request_middleware import RequestContext
from control_plane.request_paths import RequestPaths
from control_plane.request_slots import RequestSlots
from control_plane.settings import ControlSettings, WebSettings
from control_plane.tenant_scope import TenantScopes
from control_plane.tenants.api import AdminTenants, OwnTenant
from control_plane.tenants.terms_api import AdminTenantTerms, OwnPlanOfTenant
from control_plane.usage.api import OwnQuota, OwnUsage, TenantUsage
from control_plane.usage.organization_api import OrganizationUsage
from core import telemetry
from core.request_rate import RequestRate
from core.struct_types import complete_struct_types


def serve(settings: ControlSettings) -> None:
    """Serve until SIGTERM, then let running requests finish within ``control_drain_s``."""
    server(settings, Bucket(settings.s3, settings.store)).run()


def server(settings: ControlSettings, bucket: Bucket) -> uvicorn.Server:
    """A configured server that has not started."""
    return uvicorn.Server(
        uvicorn.Config(
            create_app(settings, bucket),
            host=settings.web.control_host,
            port=settings.web.control_port,
            loop="core.event_loop:EventLoop",
            http=protocol_for(settings.web, file_body_s=settings.batches.batch_file_s),
            access_log=False,  # request_middleware logs each request with its id
            log_config=None,
            server_header=False,
            timeout_keep_alive=settings.web.control_keepalive_s,
            timeout_graceful_shutdown=settings.web.control_drain_s,
            backlog=512,
        )
    )


def create_app(settings: ControlSettings, bucket: Bucket) -> Litestar:
    """The application. It opens no connection before its first request, and closes all connections when it stops."""
    resources = _resources(settings, bucket)
    engine, redis = resources.engine, resources.redis
    authenticator = Authenticator(engine=engine, pepper=resources.pepper, find_principal=api_keys.find_principal)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        complete_struct_types()
        # A thread for each request that may run: one that waits for Postgres must not keep another from starting.
        threads = 2 * settings.web.control_requests_max + settings.web.control_admin_requests_max
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(threads, thread_name_prefix="request"))
        telemetry.report_readiness(resources.readiness.not_ready)
        yield
        # A request that still runs returns its connections before they are closed.
        await asyncio.get_running_loop().shutdown_default_executor()
        metrics.OUTBOX_AGE.set_function(lambda: math.nan)  # the gauge is the process's, and outlives the connections
        resources.redis.close()
        resources.notification_rules.close()
        resources.provider_rules.close()
        resources.engine.dispose()
        resources.reports.dispose()

    app = Litestar(
        route_handlers=[
            livez,
            readyz,
            pay_invoice,
            DeviceSignIns,
            stripe_webhook(settings.webhooks.payments_webhook_bytes_max),
            _admin(settings, authenticator),
            _tenant(authenticator),
            _openai(settings, authenticator),
            console_router(
                settings.console,
                resources,
                bucket_origin=settings.s3.s3_public_endpoint or settings.s3.s3_endpoint or "https://*.amazonaws.com",
                app=lambda: app,
                api=lambda: handler,
            ),
        ],
        dependencies=providers(resources),
        exception_handlers=HANDLERS,
        request_class=StrictRequest,
        request_max_body_size=settings.web.control_body_bytes_max,
        lifespan=[lifespan],
        cors_config=cors_rules(settings.cors.control_cors_origins),
        logging_config=None,  # core.telemetry has set up logging, and errors.py logs unexpected errors
        openapi_config=describe_api(),
    )
    describe_problems(app)
    metrics.OUTBOX_AGE.set_function(lambda: outbox_age_s(engine))
    handler: ASGIApp = TenantScopes(RequestPaths(app.asgi_handler))
    if settings.web.acknowledge_wait_ms:
        waiter = AckWaiter(engine, redis, wait_ms=settings.web.acknowledge_wait_ms)
        handler = AcknowledgedAnswers(handler, waiter)
    # It wraps the application and is no Litestar middleware: those never see a request that matches no route.
    app.asgi_handler = RequestContext(handler, _slots(settings.web))
    return app


def _resources(settings: ControlSettings, bucket: Bucket) -> Resources:
    """What all requests share."""
    engine = tenant_scope.connect(settings.postgres)
    report_connections = {"postgres_pool_max": settings.web.control_report_connections_max}
    redis = open_redis(settings.redis.redis_url)
    return Resources(
        engine=engine,
        reports=tenant_scope.connect(settings.postgres.model_copy(update=report_connections)),
        redis=redis,
        bucket=bucket,
        uploads=Uploads(engine, UploadStore(bucket), lifetime_s=settings.upload.upload_url_expires_s),
        readiness=ReadinessCheck(engine, redis, bucket),
        pepper=Pepper(*settings.keys.peppers),
        web=settings.web,
        upload=settings.upload,
        notification_rules=NotificationRules(settings.notifications),
        provider_rules=ProviderRules(settings.providers),
        costs=settings.costs,
        invoices=settings.invoices,
        pdf_maker=PdfMaker(settings.documents),
        payments=PaymentAccess(settings.stripe, settings.webhooks),
        request_log=_request_log(settings, bucket),
        batches=settings.batches,
        console=settings.console,
        invitation_mail=InvitationMail(settings.notifications, settings.smtp),
    )


def _request_log(settings: ControlSettings, bucket: Bucket) -> RequestLogReader:
    chosen = settings.request_log
    engine = query_engine(chosen.request_log_clickhouse_url, timeout_s=chosen.request_log_query_s)
    return RequestLogReader(bucket, settings.s3, engine, chosen)


def _slots(web: WebSettings) -> RequestSlots:
    per_address = web.control_address_requests_per_minute
    return RequestSlots(
        requests_max=web.control_requests_max,
        tenant_requests_max=web.control_tenant_requests_max,
        admin_requests_max=web.control_admin_requests_max,
        tenant_rate=RequestRate(web.control_tenant_requests_per_minute),
        address_rate=None if per_address is None else RequestRate(per_address),
    )


def _admin(settings: ControlSettings, authenticator: Authenticator) -> Router:
    return Router(
        path="/api/v1/admin",
        guards=[admin_key(authenticator), refuse_unknown_parameters],
        after_request=dollars.answered,
        route_handlers=[
            AdminTenants,
            AdminTenantTerms,
            TenantApiKeys,
            TenantAdapters,
            TenantUsage,
            TenantRequests,
            AdminPlans,
            admin_base_models(settings.web.control_base_model_bytes_max),
            AdminRankClasses,
            AdminReplicas,
            AdminCordons,
            AdminPools,
            AdminDemand,
            AdminModelGroups,
            AdminBatches,
            AdminProviders,
            AdminRevocations,
            AdminBilling,
            AdminCorrections,
            AdminParties,
            AdminReconciliations,
            AdminRequestUsage,
            AdminTenantLedger,
            AdminCredits,
            AdminSpending,
            AdminInvoiceDocuments,
            AdminCreditNoteDocuments,
            AdminCosts,
            AdminPayments,
            AdminAuditEvents,
            AdminPeople,
            Changes,
        ],
    )


def _tenant(authenticator: Authenticator) -> Router:
    return Router(
        path="/api/v1",
        guards=[tenant_key(authenticator), refuse_unknown_parameters],
        after_request=dollars.answered,
        route_handlers=[
            OwnTenant,
            OwnPlanOfTenant,
            OwnQuota,
            ApiKeys,
            BaseModels,
            Adapters,
            AdapterDeletion,
            Aliases,
            Revisions,
            ModelGroups,
            OwnRevocations,
            OwnUsage,
            OwnRequests,
            OwnInvoices,
            OwnDocuments,
            OwnCredits,
            OwnInvoiceDocuments,
            OwnCreditNoteDocuments,
            SpendLimits,
            NotificationEndpoints,
            NotificationDeliveries,
            OwnPayments,
            OwnAuditEvents,
            Members,
            Invitations,
            DeviceLogins,
            Changes,
        ],
    )


def _openai(settings: ControlSettings, authenticator: Authenticator) -> Router:
    """Tenant routes at the paths where OpenAI's clients look for them."""
    return Router(
        path="/v1",
        guards=[tenant_key(authenticator), refuse_unknown_parameters],
        route_handlers=[OrganizationUsage, Files, Batches, short_batch(settings.batches.batch_short_bytes_max)],
    )
