"""Lots of credit for billing's stage, also such that began or ended in the past."""

from datetime import datetime, timedelta

import pytest

from billing import ledger
from billing.credits import balance, lots
from billing.credits.lot_entries import LotState, move
from billing.credits.models import CreditLot
from billing.credits.views import CreditBalance, LotView
from billing.ledger import AccountRef
from billing.subscriptions.billed_until import hold_subscriptions
from core.db import database_now, unit_of_work
from core.ids import new_id

DOLLAR = 1_000_000_000


class Credits:
    def __init__(self, stage) -> None:
        self.stage = stage

    def grant(self, tenant_id: str, dollars: float, **changes) -> LotView:
        values = {"kind": "paid", "reference": new_id("crl")} | changes
        with unit_of_work(self.stage.engine) as session:
            return lots.grant(session, tenant_id=tenant_id, amount_nanos=round(dollars * DOLLAR), **values)

    def granted(self, tenant_id: str, dollars: float, **changes) -> str:
        """A lot that was granted in the past. Returns its id."""
        with unit_of_work(self.stage.engine) as session:
            hold_subscriptions(session, [tenant_id])
            now = database_now(session)
            values = {
                "id": new_id("crl"), "tenant_id": tenant_id, "kind": "paid", "amount_nanos": round(dollars * DOLLAR),
                "priority": 50, "effective_from": now - timedelta(days=100), "expires_at": None, "models": [],
                "reference": new_id("crl"), "created_at": now,
            }  # fmt: skip
            lot = CreditLot(**(values | changes))
            session.add(lot)
            session.flush()
            move(session, LotState(lot, 0, 0, 0, 0, 0, 0), "grant", lot.amount_nanos)
            return lot.id

    def balance(self, tenant_id: str) -> CreditBalance:
        with unit_of_work(self.stage.engine) as session:
            return balance.read_balance(session, tenant_id)

    def lot(self, tenant_id: str, lot_id: str) -> LotView:
        with unit_of_work(self.stage.engine) as session:
            return lots.get_lot(session, tenant_id=tenant_id, lot_id=lot_id)

    def lapse(self, tenant_id: str) -> int:
        with unit_of_work(self.stage.engine) as session:
            return lots.lapse(session, tenant_id)

    def spend(self, tenant_id: str, dollars: float, *, at: datetime | None = None, **changes) -> None:
        """Record usage that costs this much by the stage's price of 600 nanodollars for an output token."""
        tokens, rest = divmod(round(dollars * DOLLAR), 600)
        assert rest == 0, "a multiple of the price"
        quantities = {"input_tokens": 0, "cached_tokens": 0, "output_tokens": tokens, "kv_page_ms": 0}
        settled = {} if at is None else {"settled_at_ms": round(at.timestamp() * 1000)}
        self.stage.bill(self.stage.event(tenant_id, **(quantities | settled | changes)))

    def account(self, kind: str, tenant_id: str | None = None) -> int:
        with unit_of_work(self.stage.engine) as session:
            return ledger.balance_nanos(session, AccountRef(kind, tenant_id))

    def check(self) -> None:
        """The ledger is whole, and each balance is the fold of its entries."""
        assert self.stage.value("SELECT coalesce(sum(amount_nanos), 0) FROM entries") == 0
        wrong = self.stage.rows(
            "SELECT lot_id FROM (SELECT lot_id, balance_nanos,"
            " sum(amount_nanos) OVER (PARTITION BY lot_id ORDER BY number) AS fold FROM credit_entries) e"
            " WHERE fold <> balance_nanos OR balance_nanos < 0"
        )
        assert wrong == []
        differing = self.stage.rows(
            "SELECT l.tenant_id, l.kind FROM credit_lots l JOIN credit_entries e ON e.lot_id = l.id GROUP BY 1, 2"
            " HAVING sum(e.amount_nanos) <> coalesce((SELECT -sum(x.amount_nanos) FROM entries x JOIN accounts a"
            " ON a.id = x.account_id WHERE a.tenant_id = l.tenant_id AND a.kind = 'credits_' || l.kind), 0)"
        )
        assert differing == []


@pytest.fixture
def wallet(stage) -> Credits:
    return Credits(stage)
