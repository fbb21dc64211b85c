"""Costs of owners: what outside providers charged for their requests, what each tenant caused in all, and how a
placement group's idle time is spread over those who used it. The costs of replicas' hours come from ``hours.py``.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final

import msgspec
import sqlalchemy as sa
from sqlmodel import Session

from billing.costs.allocation import CostKind, CostOwner
from billing.costs.break_even import ChargedOutside
from core import clock

_OF_TENANTS: Final = sa.text("""
SELECT tenant_id, sum(nanos)::bigint FROM (
    SELECT tenant_id, nanos FROM cost_rows
    WHERE hour_ms >= :since_ms AND tenant_id = ANY(CAST(:tenants AS text[]))
  UNION ALL
    SELECT tenant_id, cost_nanos FROM provider_costs
    WHERE settled_at >= :since AND tenant_id = ANY(CAST(:tenants AS text[]))
) caused GROUP BY tenant_id
""")

_AT_PROVIDERS: Final = sa.text("""
SELECT c.tenant_id, coalesce(v.plan_id, '') AS plan_id, c.base_model, sum(c.cost_nanos)::bigint AS nanos,
       sum(c.input_tokens + c.output_tokens)::bigint AS tokens
FROM provider_costs c LEFT JOIN price_versions v ON v.id = c.price_version_id
WHERE c.settled_at >= :start AND c.settled_at < :end
GROUP BY c.tenant_id, v.plan_id, c.base_model ORDER BY c.tenant_id, v.plan_id, c.base_model
""")
_COUNTED_LIKE: Final = sa.text("SELECT base_model, counts_like FROM outside_models")


class OwnedCost(msgspec.Struct, frozen=True, kw_only=True):
    """One owner's cost for one reason in a placement group. ``tokens`` are those of a provider's model."""

    base_model: str
    rank_max: int
    owner: CostOwner
    kind: CostKind
    nanos: int
    tokens: int = 0


def costs_at_providers(session: Session, *, start: datetime, end: datetime) -> list[OwnedCost]:
    """What outside providers charged for the requests that settled in ``[start, end)``, by owner and base model,
    also where that was nothing.
    """
    return [
        OwnedCost(
            base_model=row["base_model"],
            rank_max=0,
            owner=CostOwner(tenant_id=row["tenant_id"], plan_id=row["plan_id"]),
            kind="provider",
            nanos=row["nanos"],
            tokens=row["tokens"],
        )
        for row in session.connection().execute(_AT_PROVIDERS, {"start": start, "end": end}).mappings()
    ]


def charged_outside(session: Session, at_providers: Iterable[OwnedCost]) -> dict[str, ChargedOutside]:
    """What a provider charged in all for a model that counts its prompts like a base model of the platform's own, by
    that base model; of several such models, the one with the most tokens.
    """
    nanos, tokens = Counter[str](), Counter[str]()
    for cost in at_providers:
        nanos[cost.base_model] += cost.nanos
        tokens[cost.base_model] += cost.tokens
    like: dict[str, str] = {model: own for model, own in session.connection().execute(_COUNTED_LIKE)}  # noqa: C416
    found: dict[str, ChargedOutside] = {}
    for model in sorted(like.keys() & tokens.keys(), key=lambda model: (tokens[model], model)):
        found[like[model]] = ChargedOutside(base_model=model, nanos=nanos[model], tokens=tokens[model])
    return found


def costs_of_tenants(session: Session, tenant_ids: Collection[str], *, since: datetime) -> dict[str, int]:
    """The direct cost of each of these tenants from ``since`` on: in the hours that are shared out, and at outside
    providers.
    """
    parameters = {"since_ms": clock.to_ms(since), "since": since, "tenants": list(tenant_ids)}
    found = session.connection().execute(_OF_TENANTS, parameters)
    return dict.fromkeys(tenant_ids, 0) | {tenant_id: nanos for tenant_id, nanos in found}  # noqa: C416 - of row types


def absorbed_costs(costs: Iterable[OwnedCost]) -> dict[tuple[CostOwner, str], int]:
    """Direct cost plus a part of the platform's cost of the same placement group, by owner and base model. Whole
    nanodollars: the parts of a group add up to its cost. A group without usage spreads nothing.
    """
    direct: dict[tuple[str, int], Counter[CostOwner]] = defaultdict(Counter)
    overhead: Counter[tuple[str, int]] = Counter()
    for cost in costs:
        group = (cost.base_model, cost.rank_max)
        if cost.owner.tenant_id:
            direct[group][cost.owner] += cost.nanos
        else:
            overhead[group] += cost.nanos
    found: Counter[tuple[CostOwner, str]] = Counter()
    for group, owners in direct.items():
        whole, so_far, given = sum(owners.values()), 0, 0
        for owner in sorted(owners):  # each gets what the running total has grown by, so that nothing is lost
            so_far += owners[owner]
            share = overhead[group] * so_far // whole - given
            given += share
            found[owner, group[0]] += owners[owner] + share
    return dict(found)
