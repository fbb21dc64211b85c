"""What tenants were charged in a period, by the owner whose cost it stands beside: usage, resources, and the rest of
each tenant's account.

Usage counts in the hour in which it settled, as it is amended now. Everything else counts when the ledger posted it.
What promotional credit pays is no revenue: it is taken off beside the usage that it pays. So the amounts of a period
add up to the ledger's revenue less that credit, whatever of it belongs to an adapter.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Final

import msgspec
import sqlalchemy as sa
from sqlmodel import Session

from billing.charges.resource_charge import ResourceTotal, resource_charge
from billing.costs.allocation import CostOwner
from billing.prices import price_book
from billing.prices.price_book import PriceBook

ACCOUNT: Final = "(account)"
"""Stands for an adapter or a model in revenue that belongs to none: no name of one has such a bracket."""

_LAST: Final = datetime(9999, 1, 1, tzinfo=UTC)

_USAGE: Final = sa.text("""
SELECT u.tenant_id, u.adapter_id, v.plan_id, u.base_model,
       sum(u.input_tokens)::bigint AS input_tokens, sum(u.cached_tokens)::bigint AS cached_tokens,
       sum(u.output_tokens)::bigint AS output_tokens,
       sum(u.input_nanos + u.cached_input_nanos + u.output_nanos + u.kv_nanos)::bigint AS usage_nanos
FROM usage_hours u JOIN price_versions v ON v.id = u.price_version_id
WHERE u.hour >= :start AND u.hour < :end
GROUP BY u.tenant_id, u.adapter_id, v.plan_id, u.base_model
ORDER BY u.tenant_id, u.adapter_id, v.plan_id, u.base_model
""")

# The ledger's revenue apart from records and their amendments. A transfer of these kinds is of one tenant.
_POSTED: Final = sa.text("""
SELECT whose.tenant_id, t.created_at, -e.amount_nanos AS nanos
FROM transfers t
JOIN entries e ON e.transfer_id = t.id
JOIN accounts r ON r.id = e.account_id AND r.kind = 'revenue'
CROSS JOIN LATERAL (
    SELECT a.tenant_id FROM entries o JOIN accounts a ON a.id = o.account_id
    WHERE o.transfer_id = t.id AND a.tenant_id IS NOT NULL LIMIT 1
) whose
WHERE t.kind IN ('adjustment', 'credit_note', 'void') AND t.created_at >= :start AND t.created_at < :end
""")
# What promotional credit pays of invoices, and at the end of time what it will pay of usage that is not invoiced: by
# the part of the usage of that time which lies in the period. Without usage, it counts where the time ends.
_PROMOTIONAL: Final = sa.text("""
WITH paid AS (
    SELECT i.tenant_id, i.period_start AS begins, i.period_end AS ends, -sum(e.amount_nanos) AS nanos
    FROM credit_lots l JOIN credit_entries e ON e.lot_id = l.id AND e.invoice_id IS NOT NULL
    JOIN invoices i ON i.id = e.invoice_id
    WHERE l.kind = 'promotional' AND i.period_start < :end AND i.period_end > :start
    GROUP BY i.id HAVING sum(e.amount_nanos) <> 0
  UNION ALL
    SELECT s.tenant_id, owed.since, 'infinity', least(given.nanos, owed.nanos)
    FROM (
        SELECT l.tenant_id, sum(e.amount_nanos) AS nanos FROM credit_lots l JOIN credit_entries e ON e.lot_id = l.id
        WHERE l.kind = 'promotional' AND l.effective_from <= now() GROUP BY l.tenant_id HAVING sum(e.amount_nanos) > 0
    ) given JOIN subscriptions s USING (tenant_id)
    CROSS JOIN LATERAL (
        SELECT coalesce(s.billed_until, '-infinity') AS open_since,
            date_trunc('hour', s.billed_until + interval '1 hour' - interval '1 microsecond', 'UTC') AS next_hour,
            min(c.period_start) AS waiting_since,
            coalesce(sum(c.amount_nanos), 0) AS waiting_nanos
        FROM carried_periods c WHERE c.tenant_id = s.tenant_id AND NOT EXISTS (
            SELECT FROM invoices i WHERE i.tenant_id = c.tenant_id AND i.period_end > c.billed_until
        )
    ) w
    CROSS JOIN LATERAL (
        SELECT least(w.open_since, w.waiting_since) AS since, w.waiting_nanos
            + (SELECT coalesce(sum(input_nanos + cached_input_nanos + output_nanos + kv_nanos), 0) FROM usage_hours
                WHERE tenant_id = s.tenant_id AND hour >= w.open_since)
            + (SELECT coalesce(sum(amount_nanos), 0) FROM usage_now  -- of the hour in which the open time began
                WHERE tenant_id = s.tenant_id AND settled_at >= w.open_since AND settled_at < w.next_hour)
            + (SELECT coalesce(sum(amount_nanos), 0) FROM usage_adjustments
                WHERE tenant_id = s.tenant_id AND period_start >= w.open_since) AS nanos
    ) owed
    WHERE owed.nanos > 0
), counted AS (
    SELECT p.*, coalesce(u.whole, 0) AS whole, coalesce(u.part, 0) AS part FROM paid p CROSS JOIN LATERAL (
        SELECT sum(amount) AS whole, sum(amount) FILTER (WHERE hour >= :start AND hour < :end) AS part
        FROM (
            SELECT hour, input_nanos + cached_input_nanos + output_nanos + kv_nanos AS amount FROM usage_hours
            WHERE tenant_id = p.tenant_id AND hour >= date_trunc('hour', p.begins, 'UTC') AND hour < p.ends
        ) used
    ) u
)
SELECT tenant_id, greatest(:start, least(ends, :end) - interval '1 microsecond') AS at,
    -CASE WHEN whole > 0 THEN div(nanos * part, whole) WHEN ends > :start AND ends <= :end THEN nanos ELSE 0 END::bigint
FROM counted
""")
_RESOURCES: Final = sa.text("""
SELECT r.tenant_id, r.kind, r.adapter_id, r.base_model, r.rank_class, s.version_id, sum(r.units)::numeric AS units
FROM resource_hours r
JOIN unnest(
    CAST(:tenants AS text[]), CAST(:begins AS timestamptz[]), CAST(:ends AS timestamptz[]), CAST(:versions AS text[])
) AS s (tenant_id, begins, ends, version_id) ON s.tenant_id = r.tenant_id AND r.hour >= s.begins AND r.hour < s.ends
WHERE r.hour >= :start AND r.hour < :end
GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
""")
_METERED: Final = sa.text("SELECT DISTINCT tenant_id FROM resource_hours WHERE hour >= :start AND hour < :end")
_ENDED: Final = sa.text("""
SELECT tenant_id, ended_at FROM subscriptions WHERE ended_at IS NOT NULL AND tenant_id = ANY(CAST(:tenants AS text[]))
""")


class Revenue(msgspec.Struct, frozen=True, kw_only=True):
    """What an owner was charged. ``usage_nanos`` is rated usage, ``resource_nanos`` storage, pins and cold loads at
    list price, ``account_nanos`` what belongs to no adapter: fees, tiers, discounts, commitments, notes, voids and, as
    a deduction, what promotional credit pays.
    """

    owner: CostOwner
    base_model: str
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    usage_nanos: int = 0
    resource_nanos: int = 0
    account_nanos: int = 0

    @property
    def revenue_nanos(self) -> int:
        """All of it."""
        return self.usage_nanos + self.resource_nanos + self.account_nanos

    @property
    def has_usage(self) -> bool:
        """Whether requests are a part of it: a replica's time went into them, which has a cost."""
        return self.input_tokens + self.output_tokens > 0 or self.usage_nanos != 0


def read_revenue(session: Session, *, start: datetime, end: datetime) -> list[Revenue]:
    """The revenue of the whole hours from ``start`` to ``end``, by owner and base model."""
    period = {"start": start, "end": end}
    posted = [tuple(row) for query in (_POSTED, _PROMOTIONAL) for row in session.connection().execute(query, period)]
    metered = session.connection().execute(_METERED, period).scalars().all()
    book = price_book.load(session, {*(tenant_id for tenant_id, _, _ in posted), *metered})
    resources = list(_resources(session, book, metered, period))
    return [*_usage(session, period), *resources, *_account(book, posted, resources)]


def _usage(session: Session, period: Mapping[str, datetime]) -> Iterator[Revenue]:
    for row in session.connection().execute(_USAGE, period).mappings():
        owner = CostOwner(tenant_id=row["tenant_id"], adapter_id=row["adapter_id"], plan_id=row["plan_id"])
        counts = {name: row[name] for name in ("input_tokens", "cached_tokens", "output_tokens", "usage_nanos")}
        yield Revenue(owner=owner, base_model=row["base_model"], **counts)


def _resources(
    session: Session, book: PriceBook, tenant_ids: Collection[str], period: Mapping[str, datetime]
) -> Iterator[Revenue]:
    """What the lines of resources charge, with the prices in force at the start of each hour."""
    spans = list(_priced_spans(session, book, tenant_ids))
    columns = ("tenants", "begins", "ends", "versions")
    parameters = {**period, **{name: [span[position] for span in spans] for position, name in enumerate(columns)}}
    totals: defaultdict[str, list[ResourceTotal]] = defaultdict(list)
    for row in session.connection().execute(_RESOURCES, parameters):
        tenant_id, kind, adapter_id, base_model, rank_class, version_id, units = row
        version = book.versions_by_id[version_id]
        totals[tenant_id].append(
            ResourceTotal(kind, adapter_id, None, base_model, rank_class, None, version, int(units))
        )
    for tenant_id, used in totals.items():
        for line in resource_charge(used):
            version = book.versions_by_id[line.price_version_id or ""]
            owner = CostOwner(tenant_id=tenant_id, adapter_id=line.adapter_id or "", plan_id=version.plan_id)
            yield Revenue(owner=owner, base_model=line.base_model or "", resource_nanos=line.amount_nanos)


def _priced_spans(
    session: Session, book: PriceBook, tenant_ids: Collection[str]
) -> Iterator[tuple[str, datetime, datetime, str]]:
    """The intervals in which tenants are charged for resources, as ``billing.charges.inputs`` charges them."""
    found = session.connection().execute(_ENDED, {"tenants": sorted(tenant_ids)})
    ended: dict[str, datetime] = {row.tenant_id: row.ended_at for row in found}
    for tenant_id in sorted(tenant_ids):
        spans, joined = book.spans(tenant_id), book.joined(tenant_id)
        for span, following in zip_longest(spans, spans[1:]):
            begins, ends = max(span.begins, joined or span.begins), ended.get(tenant_id, _LAST)
            ends = ends if following is None else min(ends, following.begins)
            if span.version is not None and span.version.card.has_resource_prices and begins < ends:
                yield tenant_id, begins, ends, span.version.id


def _account(
    book: PriceBook, posted: Iterable[tuple[str, datetime, int]], resources: Iterable[Revenue]
) -> Iterator[Revenue]:
    """What the ledger posted beside usage, less what ``resources`` explain of it."""
    sums: Counter[CostOwner] = Counter()
    for tenant_id, posted_at, nanos in posted:
        version = book.in_force(tenant_id, posted_at)
        plan_id = "" if version is None else version.plan_id
        sums[CostOwner(tenant_id=tenant_id, adapter_id=ACCOUNT, plan_id=plan_id)] += nanos
    for each in resources:
        sums[msgspec.structs.replace(each.owner, adapter_id=ACCOUNT)] -= each.resource_nanos
    for owner in sorted(sums):
        if sums[owner]:
            yield Revenue(owner=owner, base_model=ACCOUNT, account_nanos=sums[owner])
