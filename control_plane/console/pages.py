"""The pages: their addresses, their templates, and what of the API each of them shows.

A page shows only what the API answers to the person. The first read is the page's own: where the API refuses it, the
page is refused with the same status. Where another read is refused, its part of the page says why.
"""

from typing import Final

from control_plane.console.console_page import ConsolePage

_T: Final = "/api/v1/admin/tenants/{tenant_id}"

PAGES: Final = (
    ConsolePage(
        path="/",
        template="home.html",
        title="Home",
        group="Build",
        key="h",
        reads={
            "me": "/api/v1/me",
            "keys": "/api/v1/api-keys?limit=10",
            "adapters": "/api/v1/adapters?limit=10",
            "requests": "/api/v1/requests?limit=5",
            "usage": "/api/v1/usage?bucket=1h",
            "quota": "/api/v1/quota",
        },
    ),
    ConsolePage(
        path="/adapters",
        template="adapters.html",
        title="Adapters",
        group="Build",
        key="a",
        queried="adapters",
        reads={
            "adapters": "/api/v1/adapters",
            "base_models": "/api/v1/base-models?limit=100",
            "me": "/api/v1/me",
        },
    ),
    ConsolePage(
        path="/adapters/{name}",
        template="adapter.html",
        title="Adapter",
        reads={
            "adapter": "/api/v1/adapters/{name}",
            "revisions": "/api/v1/adapters/{name}/revisions?limit=20",
            "aliases": "/api/v1/adapters/{name}/aliases",
            "usage": "/api/v1/usage?bucket=1d&group_by=revision",
        },
    ),
    ConsolePage(
        path="/adapters/{name}/revisions/{revision_id}",
        template="revision.html",
        title="Revision",
        reads={
            "revision": "/api/v1/adapters/{name}/revisions/{revision_id}",
            "adapter": "/api/v1/adapters/{name}",
        },
    ),
    ConsolePage(
        path="/deletions/{revocation_id}",
        template="deletion.html",
        title="Deletion",
        reads={"revocation": "/api/v1/revocations/{revocation_id}"},
    ),
    ConsolePage(
        path="/keys",
        template="keys.html",
        title="Keys",
        group="Build",
        key="k",
        queried="keys",
        reads={"keys": "/api/v1/api-keys", "usage": "/api/v1/usage?bucket=1d&group_by=key&start={month_ago}"},
    ),
    ConsolePage(path="/login-code", template="login_code.html", title="Sign in a command", reads={"me": "/api/v1/me"}),
    ConsolePage(
        path="/login-code/{code}",
        template="login_confirm.html",
        title="Sign in a command",
        reads={"login": "/api/v1/device-authorizations/{code}"},
    ),
    ConsolePage(
        path="/requests",
        template="requests.html",
        title="Requests",
        group="Operate",
        key="r",
        queried="requests",
        reads={"requests": "/api/v1/requests"},
    ),
    ConsolePage(
        path="/requests/{request_id}",
        template="request.html",
        title="Request",
        reads={"request": "/api/v1/requests/{request_id}"},
    ),
    ConsolePage(
        path="/usage",
        template="usage.html",
        title="Usage",
        group="Operate",
        key="u",
        queried="usage",
        reads={"usage": "/api/v1/usage?bucket=1h"},
    ),
    ConsolePage(
        path="/limits",
        template="limits.html",
        title="Limits",
        group="Operate",
        key="l",
        reads={"quota": "/api/v1/quota", "spend_limits": "/api/v1/spend-limits"},
    ),
    ConsolePage(
        path="/batches",
        template="batches.html",
        title="Batches",
        group="Operate",
        queried="batches",
        reads={"batches": "/v1/batches?limit=50"},
    ),
    ConsolePage(
        path="/billing",
        template="billing.html",
        title="Billing",
        group="Account",
        key="b",
        queried="invoices",
        reads={
            "plan": "/api/v1/plan",
            "drafts": "/api/v1/invoices/draft",
            "credit": "/api/v1/credits",
            "invoices": "/api/v1/invoices",
            "profile": "/api/v1/billing-profile",
        },
    ),
    ConsolePage(
        path="/invoices/{invoice_id}",
        template="invoice.html",
        title="Invoice",
        reads={"explained": "/api/v1/invoices/{invoice_id}/explain"},
        queried="explained",
    ),
    ConsolePage(
        path="/invoices/{invoice_id}/lines/{line_id}",
        template="invoice_line.html",
        title="Invoice line",
        reads={"explained": "/api/v1/invoices/{invoice_id}/explain/{line_id}"},
        queried="explained",
    ),
    ConsolePage(
        path="/team",
        template="team.html",
        title="Team",
        group="Account",
        reads={"members": "/api/v1/members", "invitations": "/api/v1/invitations"},
    ),
    ConsolePage(
        path="/webhooks",
        template="webhooks.html",
        title="Webhooks",
        group="Account",
        reads={
            "endpoints": "/api/v1/notification-endpoints",
            "deliveries": "/api/v1/notification-deliveries?limit=20",
        },
    ),
    ConsolePage(
        path="/audit",
        template="audit.html",
        title="Audit",
        group="Account",
        queried="events",
        reads={"events": "/api/v1/audit-events"},
    ),
    ConsolePage(
        path="/admin",
        template="admin_overview.html",
        title="Overview",
        group="Platform",
        reads={
            "replicas": "/api/v1/admin/replicas",
            "runs": "/api/v1/admin/reconciliation/runs?limit=1",
            "tenants": "/api/v1/admin/tenants?limit=10",
            "alarms": "/api/v1/admin/payments/alarms?limit=10",
            "pause": "/api/v1/admin/batches/pause",
            "costs": "/api/v1/admin/costs",
        },
    ),
    ConsolePage(
        path="/admin/tenants",
        template="admin_tenants.html",
        title="Tenants",
        group="Platform",
        queried="tenants",
        reads={"tenants": "/api/v1/admin/tenants", "plans": "/api/v1/admin/plans?limit=100"},
    ),
    ConsolePage(
        path="/admin/tenants/{tenant_id}",
        template="admin_tenant.html",
        title="Tenant",
        reads={
            "tenant": _T,
            "members": f"{_T}/members",
            "keys": f"{_T}/api-keys?limit=20",
            "adapters": f"{_T}/adapters?limit=20",
            "usage": f"{_T}/usage?bucket=1h",
            "credits": f"{_T}/credits?limit=20",
            "invoices": "/api/v1/admin/invoices?tenant_id={tenant_id}&limit=20",
            "audit": "/api/v1/admin/audit-events?tenant_id={tenant_id}&limit=10",
        },
    ),
    ConsolePage(
        path="/admin/tenants/{tenant_id}/ledger",
        template="admin_ledger.html",
        title="Ledger",
        queried="transfers",
        reads={"accounts": f"{_T}/ledger/accounts", "transfers": f"{_T}/ledger/transfers"},
    ),
    ConsolePage(
        path="/admin/plans",
        template="admin_plans.html",
        title="Plans",
        group="Platform",
        queried="plans",
        reads={"plans": "/api/v1/admin/plans"},
    ),
    ConsolePage(
        path="/admin/plans/{plan_id}",
        template="admin_plan.html",
        title="Plan",
        queried="versions",
        reads={
            "versions": "/api/v1/admin/plans/{plan_id}/versions",
            "drafts": "/api/v1/admin/plans/{plan_id}/drafts?limit=20",
        },
    ),
    ConsolePage(
        path="/admin/fleet",
        template="admin_fleet.html",
        title="Fleet",
        group="Platform",
        reads={
            "replicas": "/api/v1/admin/replicas",
            "cordons": "/api/v1/admin/cordons",
            "pools": "/api/v1/admin/pools",
        },
    ),
    ConsolePage(
        path="/admin/fairness",
        template="admin_fairness.html",
        title="Fairness",
        group="Platform",
        reads={"demand": "/api/v1/admin/demand"},
    ),
    ConsolePage(
        path="/admin/pools/{pool}",
        template="admin_pool.html",
        title="Pool",
        reads={
            "pool": "/api/v1/admin/pools/{pool}",
            "revisions": "/api/v1/admin/pools/{pool}/revisions",
            "decisions": "/api/v1/admin/pools/{pool}/decisions",
        },
    ),
    ConsolePage(
        path="/admin/models",
        template="admin_models.html",
        title="Models",
        group="Platform",
        reads={"base_models": "/api/v1/admin/base-models", "providers": "/api/v1/admin/providers"},
    ),
    ConsolePage(
        path="/admin/reconciliation",
        template="admin_reconciliation.html",
        title="Reconciliation",
        group="Money",
        queried="runs",
        reads={"totals": "/api/v1/admin/reconciliation", "runs": "/api/v1/admin/reconciliation/runs?limit=20"},
    ),
    ConsolePage(
        path="/admin/invoices",
        template="admin_invoices.html",
        title="Invoices",
        group="Money",
        queried="invoices",
        reads={"invoices": "/api/v1/admin/invoices"},
    ),
    ConsolePage(
        path="/admin/payments",
        template="admin_payments.html",
        title="Payments",
        group="Money",
        reads={
            "queues": "/api/v1/admin/payments/queues",
            "alarms": "/api/v1/admin/payments/alarms",
            "events": "/api/v1/admin/payments/events?limit=20",
        },
    ),
    ConsolePage(
        path="/admin/people",
        template="admin_people.html",
        title="People",
        group="Platform",
        reads={"people": "/api/v1/admin/people"},
    ),
    ConsolePage(
        path="/admin/audit",
        template="audit.html",
        title="Audit",
        group="Platform",
        queried="events",
        reads={"events": "/api/v1/admin/audit-events"},
    ),
)


PLAYGROUND: Final = ConsolePage(
    path="/playground",
    template="playground.html",
    title="Playground",
    group="Build",
    key="p",
    scope="inference",
    reads={"adapters": "/api/v1/adapters"},
)
"""It calls models, so it has routes of its own."""


def page_at(path: str) -> tuple[ConsolePage, dict[str, str]] | None:
    """The page of a path, and the parameters in it; None where no page is."""
    for page in PAGES:
        if (parameters := page.match(path)) is not None:
            return page, parameters
    return None
