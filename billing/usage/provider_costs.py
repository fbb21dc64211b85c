"""Records what requests cost at outside providers: the platform's cost, beside the records of what tenants are charged.
A request whose tenant is charged nothing has a cost too.

The costs of a token come with the event, as they were when the request ran, so a later change of them changes no cost.
"""

from collections.abc import Iterable
from typing import Final

from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session

from billing.usage.models import ProviderCost
from core import clock
from core.contracts.usage import UsageEvent

_TOKENS: Final = ("input_tokens", "cached_tokens", "output_tokens")


def add(session: Session, events: Iterable[tuple[UsageEvent, str | None]]) -> None:
    """Record the costs of these events, each with the prices that its tenant is charged by, None where it is charged
    nothing. The exact cost of a request replaces that of its estimate.
    """
    rows = [
        {
            "request_id": event.request_id,
            "tenant_id": event.tenant_id,
            "base_model": event.base_model,
            "price_version_id": price_version_id,
            "settled_at": clock.from_ms(event.settled_at_ms),
            "cost_nanos": event.provider_nanos,
            "counted_here": event.counted_here,
            **{name: getattr(event, name) for name in _TOKENS},
        }
        for event, price_version_id in events
        if event.token_costs is not None
    ]
    if rows:
        statement = insert(ProviderCost)
        exact = {name: statement.excluded[name] for name in ("cost_nanos", "counted_here", *_TOKENS)}
        rows.sort(key=lambda row: str(row["request_id"]))  # two writers of the same rows wait for each other
        session.execute(statement.on_conflict_do_update(index_elements=["request_id"], set_=exact), rows)
