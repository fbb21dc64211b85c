"""What a past period would have cost on another price card. It writes nothing.

Token prices are linear, so sums are enough. KV page time is cut below one nanodollar in each request, so records are
read where the new price is no whole number for each page-millisecond. The result equals what a close of the period
would charge before credits and tax, with fees, discounts and commitments.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final

import msgspec
import sqlalchemy as sa
from sqlmodel import Session

from billing.charges.inputs import Contract, read_contract, read_state, read_used, split
from billing.charges.lines import DraftInvoiceLine, LineKind, UsageTotal
from billing.charges.period import charge_used
from billing.charges.statement import PeriodUse
from billing.prices.card import PriceCard
from billing.prices.price_book import PriceView
from billing.prices.quantities import QUANTITIES
from core import fields
from core.money import at_factor
from core.periods import Period

_TENANTS: Final = sa.text("""
SELECT DISTINCT tenant_id FROM plan_assignments WHERE plan_id = :plan_id AND tenant_id > :after
ORDER BY tenant_id LIMIT :limit
""")
_PAGE_TIME: Final = QUANTITIES["kv_page_seconds"]
_PAGE_COSTS: Final = sa.text(f"""
SELECT p.position, sum(floor(u.{_PAGE_TIME.count}::numeric * p.nanos / {_PAGE_TIME.scale}))::bigint AS nanos
FROM usage_now u JOIN unnest(
    CAST(:positions AS int[]), CAST(:models AS text[]), CAST(:ranks AS int[]), CAST(:adapters AS text[]),
    CAST(:versions AS text[]), CAST(:tiers AS text[]), CAST(:months AS timestamptz[]), CAST(:nanos AS bigint[])
) AS p (position, base_model, rank_class, adapter_id, version_id, service_tier, late_for, nanos)
    ON p.base_model = u.base_model AND p.rank_class = coalesce(u.rank_class, 0)
    AND p.adapter_id = coalesce(u.adapter_id, '') AND p.version_id = u.price_version_id
    AND p.service_tier = u.service_tier AND p.late_for IS NOT DISTINCT FROM
        CASE WHEN u.late_from IS NOT NULL THEN date_trunc('month', u.settled_at, 'UTC') END
WHERE u.tenant_id = :tenant_id AND u.{_PAGE_TIME.count} > 0
    AND (u.late_from IS NULL AND u.settled_at >= :start AND u.settled_at < :end
         OR u.late_from >= :start AND u.late_from < :end)
GROUP BY 1
""")  # noqa: S608 - constants of the table of quantities


class SimulatedLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of usage cost, and what it would cost. A line of tiers over all adapters has no ``adapter_id``."""

    kind: Annotated[LineKind, fields.LINE_KIND]
    base_model: Annotated[str | None, fields.BASE_MODEL]
    adapter_id: Annotated[str | None, fields.ADAPTER_ID]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    simulated_nanos: Annotated[int, fields.SIMULATED_NANOS]


class SimulatedTenant(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant's usage of a period cost, and what it would cost on another price card."""

    tenant_id: Annotated[str, fields.TENANT_ID]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    simulated_nanos: Annotated[int, fields.SIMULATED_NANOS]
    lines: Annotated[tuple[SimulatedLine, ...], fields.LINES]


def simulate(
    session: Session, *, plan_id: str, card: PriceCard, start: datetime, end: datetime, after: str | None, limit: int
) -> list[SimulatedTenant]:
    """The cost of ``[start, end)`` for tenants that ever had the plan, by its own versions and by ``card``. Tenants
    come in the order of their ids; ``after`` is the last id of the page before.
    """
    found = session.connection().execute(_TENANTS, {"plan_id": plan_id, "after": after or "", "limit": limit})
    period = Period(start, end)
    return [_tenant(session, tenant_id, plan_id, card, period) for tenant_id in found.scalars().all()]


def _tenant(session: Session, tenant_id: str, plan_id: str, card: PriceCard, period: Period) -> SimulatedTenant:
    contract = read_contract(session, tenant_id)
    state = read_state(session, tenant_id, period.start)
    parts = [
        (part, read_used(session, tenant_id, contract, part, unpriced_resources=True))
        for part in split(contract.terms.calendars, period)
    ]
    other = _with_card(contract, plan_id, card)
    simulated = [(part, _priced(session, tenant_id, part, used, plan_id, card)) for part, used in parts]
    now = charge_used(contract, parts, state, closing=True)
    then = charge_used(other, simulated, state, closing=True)
    return SimulatedTenant(
        tenant_id=tenant_id,
        amount_nanos=now.owed.amount_nanos,
        simulated_nanos=then.owed.amount_nanos,
        lines=tuple(_compared(now.lines, then.lines)),
    )


def _with_card(contract: Contract, plan_id: str, card: PriceCard) -> Contract:
    """The contract with another card in place of all versions of the plan."""
    versions = {version.id: _at_card(version, plan_id, card) for version in contract.versions.values()}
    prices = tuple(
        span if span.version is None else span._replace(version=versions[span.version.id])
        for span in contract.terms.prices
    )
    return contract._replace(terms=contract.terms._replace(prices=prices), versions=versions)


def _at_card(version: PriceView, plan_id: str, card: PriceCard) -> PriceView:
    return msgspec.structs.replace(version, card=card) if version.plan_id == plan_id else version


def _priced(
    session: Session, tenant_id: str, period: Period, used: PeriodUse, plan_id: str, card: PriceCard
) -> PeriodUse:
    """The same use at the prices of the card."""
    return PeriodUse(
        _rated(session, tenant_id, period, used.totals, plan_id, card),
        [total._replace(version=_at_card(total.version, plan_id, card)) for total in used.resources],
    )


def _rated(
    session: Session, tenant_id: str, period: Period, totals: Sequence[UsageTotal], plan_id: str, card: PriceCard
) -> list[UsageTotal]:
    """The totals at the card's prices. Those whose prices stay keep what their records cost."""
    rated, cut = list(totals), {}
    for position, total in enumerate(totals):
        at_card = msgspec.structs.replace(total, version=_at_card(total.version, plan_id, card))
        rated[position] = at_card
        if (at_card.list_prices, at_card.factor_permille) == (total.list_prices, total.factor_permille):
            continue
        used = {}
        for kind, each in total.used.items():
            price_nanos = at_factor(getattr(at_card.list_prices, QUANTITIES[kind].price), at_card.factor_permille)
            used[kind] = each._replace(nanos=QUANTITIES[kind].cost(each.counted, price_nanos))
            if price_nanos % QUANTITIES[kind].scale:
                cut[position] = price_nanos
        rated[position] = msgspec.structs.replace(at_card, used=used)
    for position, nanos in _page_costs(session, tenant_id, period, totals, cut).items():
        used = dict(rated[position].used)
        used["kv_page_seconds"] = used["kv_page_seconds"]._replace(nanos=nanos)
        rated[position] = msgspec.structs.replace(rated[position], used=used)
    return rated


def _page_costs(
    session: Session, tenant_id: str, period: Period, totals: Sequence[UsageTotal], cut: Mapping[int, int]
) -> dict[int, int]:
    """What the page time of totals costs at these prices, cut in each request, by the position of the total."""
    if not cut:
        return {}
    wanted = [totals[position] for position in cut]
    parameters = {
        "tenant_id": tenant_id, "start": period.start, "end": period.end,
        "positions": list(cut), "nanos": list(cut.values()),
        "models": [of.base_model for of in wanted], "ranks": [of.rank_class or 0 for of in wanted],
        "adapters": [of.adapter_id or "" for of in wanted], "versions": [of.version.id for of in wanted],
        "tiers": [of.service_tier for of in wanted], "months": [of.late_for for of in wanted],
    }  # fmt: skip
    return {row.position: row.nanos for row in session.connection().execute(_PAGE_COSTS, parameters)}


def _compared(now: Sequence[DraftInvoiceLine], then: Sequence[DraftInvoiceLine]) -> Iterator[SimulatedLine]:
    """What each kind of usage of each model and adapter costs on both cards. Tiers are added up."""
    amounts: defaultdict[tuple[LineKind, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for side, lines in enumerate((now, then)):
        for line in lines:
            amounts[line.kind, line.base_model or "", line.adapter_id or ""][side] += line.amount_nanos
    for (kind, base_model, adapter_id), (amount_nanos, simulated_nanos) in sorted(amounts.items()):
        yield SimulatedLine(
            kind=kind,
            base_model=base_model or None,
            adapter_id=adapter_id or None,
            amount_nanos=amount_nanos,
            simulated_nanos=simulated_nanos,
        )
