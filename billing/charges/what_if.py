"""What a past period would have cost on another price card. It reads and writes nothing.

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

from billing.charges.contract import Contract, read_contract, read_state, read_used, split
from billing.charges.lines import DraftInvoiceLine, LineKind, UsageTotal
from billing.charges.period import charge_used
from billing.charges.statement import PeriodUse
from billing.prices.card import PriceCard
from billing.prices.price_book import PriceView
from core import fields
from core.contracts.grants import Prices
from core.periods import Period

_TotalKey = tuple[str, int | None, str | None, str, str, str]

_TENANTS: Final = sa.text("""
SELECT DISTINCT tenant_id FROM plan_assignments WHERE plan_id = :plan_id AND tenant_id > :after
ORDER BY tenant_id LIMIT :limit
""")
_PAGE_TIME: Final = sa.text("""
SELECT u.base_model, u.rank_class, u.adapter_id, u.price_version_id, u.service_tier,
    CASE WHEN u.late_from IS NOT NULL THEN date_trunc('month', u.settled_at, 'UTC') END AS late_for,
    sum(floor(u.kv_page_ms::numeric * p.nanos / 1000))::bigint AS kv_nanos
FROM usage_now u JOIN unnest(
    CAST(:models AS text[]), CAST(:ranks AS int[]), CAST(:versions AS text[]), CAST(:tiers AS text[]),
    CAST(:nanos AS bigint[])
) AS p (base_model, rank_class, version_id, service_tier, nanos)
    ON p.base_model = u.base_model AND p.rank_class = coalesce(u.rank_class, 0) AND p.version_id = u.price_version_id
    AND p.service_tier = u.service_tier
WHERE u.tenant_id = :tenant_id AND u.kv_page_ms > 0
    AND (u.late_from IS NULL AND u.settled_at >= :start AND u.settled_at < :end
         OR u.late_from >= :start AND u.late_from < :end)
GROUP BY 1, 2, 3, 4, 5, 6
""")


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
    session: Session, *, plan_id: str, card: PriceCard, start: datetime, end: datetime, after: str, limit: int
) -> list[SimulatedTenant]:
    """The cost of ``[start, end)`` for tenants that ever had the plan, by its own versions and by ``card``. Tenants
    come in the order of their ids; ``after`` is the last id of the page before, "" for the first.
    """
    found = session.connection().execute(_TENANTS, {"plan_id": plan_id, "after": after, "limit": limit})
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
    simulated = [(part, _priced(session, tenant_id, part, used, other.versions, plan_id, card)) for part, used in parts]
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
    session: Session,
    tenant_id: str,
    period: Period,
    used: PeriodUse,
    versions: Mapping[str, PriceView],
    plan_id: str,
    card: PriceCard,
) -> PeriodUse:
    """The same use at the prices of ``versions``."""
    known = {**{each.id: _at_card(each, plan_id, card) for each in used.versions.values()}, **versions}
    return PeriodUse(
        _rated(session, tenant_id, period, used.totals, known),
        known,
        [total._replace(version=known[total.version.id]) for total in used.resources],
    )


def _rated(
    session: Session, tenant_id: str, period: Period, totals: Sequence[UsageTotal], versions: Mapping[str, PriceView]
) -> list[UsageTotal]:
    """The totals at the listed prices of these versions."""
    priced = [_listed(total, versions[total.price_version_id].card) for total in totals]
    changed = [(before, after) for before, after in zip(totals, priced, strict=True) if before != after]
    paid = {_key(after): after.paid for _, after in changed}
    cut = [
        (total, at.kv_page_second_nanos)
        for total, _ in changed
        if total.kv_page_ms and (at := paid[_key(total)]).kv_page_second_nanos % 1000
    ]
    page_nanos = _page_nanos(session, tenant_id, period, cut) if cut else {}
    return [
        after if before == after else _at(after, paid[_key(after)], page_nanos.get(_key(after)))
        for before, after in zip(totals, priced, strict=True)
    ]


def _listed(total: UsageTotal, card: PriceCard) -> UsageTotal:
    """The total with the card's list prices and factor, and its own amounts."""
    return msgspec.structs.replace(
        total,
        prices=card.listed(total.base_model, total.rank_class),
        factor_permille=card.factor_permille(total.service_tier),
    )


def _at(total: UsageTotal, at: Prices, kv_nanos: int | None) -> UsageTotal:
    """The total with what it costs at these prices."""
    return msgspec.structs.replace(
        total,
        input_nanos=total.uncached_input_tokens * at.input_nanos,
        cached_input_nanos=total.cached_tokens * at.cached_input_nanos,
        output_nanos=total.output_tokens * at.output_nanos,
        kv_nanos=total.kv_page_ms * at.kv_page_second_nanos // 1000 if kv_nanos is None else kv_nanos,
    )


def _page_nanos(
    session: Session, tenant_id: str, period: Period, cut: Sequence[tuple[UsageTotal, int]]
) -> dict[_TotalKey, int]:
    """What the page time of totals costs, cut in each request."""
    wanted = sorted(
        {(of.base_model, of.rank_class or 0, of.price_version_id, of.service_tier, nanos) for of, nanos in cut}
    )
    models, ranks, version_ids, tiers, nanos = (list(column) for column in zip(*wanted, strict=True))
    rows = session.connection().execute(
        _PAGE_TIME,
        {
            "tenant_id": tenant_id, "start": period.start, "end": period.end,
            "models": models, "ranks": ranks, "versions": version_ids, "tiers": tiers,
            "nanos": nanos,
        },
    )  # fmt: skip
    return {
        (
            of.base_model,
            of.rank_class,
            of.adapter_id,
            of.price_version_id,
            of.service_tier,
            str(of.late_for),
        ): of.kv_nanos
        for of in rows
    }


def _key(total: UsageTotal) -> _TotalKey:
    return (
        total.base_model, total.rank_class, total.adapter_id, total.price_version_id, total.service_tier,
        str(total.late_for),
    )  # fmt: skip


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
