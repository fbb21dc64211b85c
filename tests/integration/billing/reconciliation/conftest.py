"""Engines' reports of ended requests beside the stage of billing."""

import secrets
from datetime import datetime, timedelta

import msgspec
import pytest

from billing.credits import lots
from billing.payments.operations import ChargeTopUp, bought_with
from billing.payments.returned_payments import refund_bought
from billing.reconciliation import runs
from billing.reconciliation.differences import OF_ENGINES
from billing.reconciliation.engine_usage import store_reports
from core import clock, redis_keys
from core.contracts.engine_usage import EndedRequest, EngineUsageHour, EngineUsageReport
from core.contracts.usage import UsageEvent
from core.db import unit_of_work
from core.ids import first_id_of_ms, new_id
from core.money import NANOS_PER_CENT, cents_to_nanos

MODEL = "smollm2-135m-instruct"
LIMITS = runs.RunLimits(settle=timedelta(0), differences_max=1_000)


class Reconciled:
    """One replica, whose engine reports what it counted in one hour of the past."""

    def __init__(self, stage) -> None:
        self.stage = stage
        self.hour = stage.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)

    def request_id(self, hour: datetime | None = None) -> str:
        """An id of this hour."""
        first = first_id_of_ms("req", clock.to_ms(hour or self.hour) + secrets.randbelow(3_600_000))
        return first[:-12] + secrets.token_hex(6)

    def event(self, tenant_id: str, hour: datetime | None = None, **changes) -> UsageEvent:
        """An event of this hour, as its gateway reported it."""
        values = {"request_id": self.request_id(hour), "kv_measured": True, "cached_tokens": 0} | changes
        return self.stage.event(tenant_id, settled_at_ms=clock.to_ms(hour or self.hour) + 1_000, **values)

    def report(
        self, *, tenant_id: str, hour: datetime | None = None, boot: str = "boot_1", replica: str = "rep_1", **counts
    ) -> None:
        hour_ms = clock.to_ms(hour or self.hour)
        known = EngineUsageHour(tenant_id=tenant_id, hour_ms=hour_ms, **counts)
        self.send(EngineUsageReport(replica_id=replica, boot_id=boot, base_model=MODEL, hours=(known,)))

    def report_ended(self, tenant_id: str, request_id: str, **counts) -> None:
        ended = EndedRequest(
            request_id=request_id, tenant_id=tenant_id, ended_at_ms=clock.now_ms(),
            **({"prompt_tokens": 100, "cached_tokens": 0, "output_tokens": 20, "kv_page_ms": 1_601} | counts),
        )  # fmt: skip
        self.send(EngineUsageReport(replica_id="rep_1", boot_id="boot_1", base_model=MODEL, requests=(ended,)))

    def send(self, report: EngineUsageReport) -> None:
        self.stage.redis.xadd(redis_keys.ENGINE_USAGE, {"report": msgspec.json.encode(report)})
        store_reports(self.stage.engine, self.stage.redis)

    def run(self, *, full: bool = False):
        return runs.run(self.stage.engine, LIMITS, full=full)

    def listed(self, limit: int = 50):
        with unit_of_work(self.stage.engine) as session:
            return [runs.read_run(session, each.id) for each in runs.list_runs(session, limit=limit)]


@pytest.fixture
def reconciled(stage) -> Reconciled:
    return Reconciled(stage)


class Cash:
    """Money of one account, and what a reconciliation says about it."""

    def __init__(self, collected, reconciled) -> None:
        self.stage, self.payments, self.collected = collected.stage, collected.payments, collected
        self.reconciled = reconciled

    def differs(self) -> list[tuple[str, str, int]]:
        found = self.reconciled.run(full=True).differences
        assert [each for each in found if each.kind not in ("stripe", *OF_ENGINES)] == []
        return [(each.subject.split(": ")[1], each.unit, each.unexplained) for each in found if each.kind == "stripe"]

    def handle(self) -> None:
        """The queue and the events, with a look before, between and after."""
        assert self.differs() == []
        self.payments.work()
        assert self.differs() == []
        self.payments.receive()
        assert self.differs() == []

    def cents(self) -> int:
        return self.collected.balance("cash") // NANOS_PER_CENT

    def top_up(self, tenant: str, cents: int = 2_500):
        self.payments.enqueue(tenant, ChargeTopUp(charge_id=new_id("top"), amount_cents=cents))
        self.handle()
        with unit_of_work(self.stage.engine) as session:
            return lots.page_of_lots(session, tenant, after=None, limit=1)[0]

    def refund_credit(self, lot, cents: int) -> None:
        """As an admin does."""
        with unit_of_work(self.stage.engine) as session:
            lots.refund_unspent(session, tenant_id=lot.tenant_id, lot_id=lot.id, amount_nanos=cents_to_nanos(cents))
            intent = bought_with(lot.reference)
            refund_bought(session, tenant_id=lot.tenant_id, payment_intent=intent, amount_cents=cents)

    def charge_of(self, tenant: str):
        return self.payments.sdk.v1.charges.list({"customer": self.payments.customer(tenant)}).data[0]

    def at_stripe(self, tenant: str) -> int:
        """What Stripe has of the tenant's money."""
        charges = self.payments.sdk.v1.charges.list({"customer": self.payments.customer(tenant)}).data
        return sum(each.amount - each.amount_refunded for each in charges if each.paid)


@pytest.fixture
def cash(collected, reconciled):
    return Cash(collected, reconciled)
