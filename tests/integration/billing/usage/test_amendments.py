"""Usage that an admin amends or voids before its invoice: both amounts stay visible, and every sum follows."""

from datetime import timedelta
from functools import partial

import msgspec
import pytest
import sqlalchemy as sa

from billing import ledger
from billing.prices.card import PriceCard, PriceTier, TieredPrice
from billing.reconciliation import runs
from billing.reconciliation.differences import OF_ENGINES
from billing.usage import amendments, buckets
from billing.usage.amendments import AmendedQuantities
from billing.usage.views import AmendedUsageView
from core.contracts.usage import REST
from core.db import unit_of_work
from core.errors import AppError, Conflict, InvalidRequest
from tests.fixtures.together import together
from tests.integration.billing.conftest import PRICES

BY = {"reason": "the model looped", "actor": "key_admin"}


def void(stage, request_id: str) -> AmendedUsageView:
    with unit_of_work(stage.engine) as session:
        return amendments.void(session, request_id, **BY)


def amend(stage, request_id: str, **quantities: int) -> AmendedUsageView:
    with unit_of_work(stage.engine) as session:
        return amendments.amend(session, request_id, AmendedQuantities(**quantities), **BY)


def balance(stage, kind: str) -> int:
    return stage.value(
        "SELECT coalesce(sum(e.amount_nanos), 0) FROM entries e JOIN accounts a ON a.id = e.account_id"
        " WHERE a.kind = :k",
        k=kind,
    )


def whole(stage) -> bool:
    """Whether every count in the ledger agrees, also the sums with what the records say now. No engine has counted."""
    limits = runs.RunLimits(settle=timedelta(0), differences_max=100)
    found = runs.run(stage.engine, limits, full=True)
    return [each for each in found.differences if each.kind not in OF_ENGINES] == []


def reported(stage, tenant: str, bucket: str = "1m"):
    at = stage.now()
    start = at.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    with unit_of_work(stage.engine) as session:
        return buckets.usage(session, tenant_id=tenant, start=start, end=start + timedelta(hours=3), bucket=bucket)


@pytest.mark.scenario(67)
def test_a_voided_request_costs_nothing_and_both_transfers_stay_visible(stage):
    tenant = stage.tenant()
    event = stage.event(tenant, input_tokens=0, cached_tokens=0, output_tokens=50, kv_page_ms=0)
    stage.bill(event)
    found = void(stage, event.request_id)
    assert (found.voided, found.recorded_nanos, found.charged_nanos, found.output_tokens) == (True, 30_000, 0, 0)
    (reversal,) = found.amendments
    assert (reversal.part, reversal.amount_nanos, reversal.output_tokens) == ("reversal", 30_000, 50)
    assert (reversal.reason, reversal.actor) == ("the model looped", "key_admin")
    legs = stage.rows(
        "SELECT a.kind, e.amount_nanos FROM entries e JOIN accounts a ON a.id = e.account_id WHERE e.transfer_id = :t"
        " ORDER BY 1",
        t=reversal.transfer_id,
    )
    assert [(leg["kind"], leg["amount_nanos"]) for leg in legs] == [("revenue", 30_000), ("usage_unbilled", -30_000)]
    assert (balance(stage, "usage_unbilled"), balance(stage, "revenue")) == (0, 0)
    assert found.transfer_id != reversal.transfer_id
    assert stage.value("SELECT count(*) FROM usage_records") == 1, "the record stays"
    assert (stage.close(), whole(stage)) == ([], True)
    assert [bucket.requests for bucket in reported(stage, tenant)] == []


@pytest.mark.scenario(67)
def test_after_the_invoice_a_credit_note_is_proposed_and_nothing_changes(stage):
    event = stage.event(stage.tenant())
    stage.bill(event)
    stage.close()
    before = stage.rows("SELECT * FROM entries ORDER BY 1, 2")
    for refused in (lambda: void(stage, event.request_id), lambda: amend(stage, event.request_id, output_tokens=1)):
        with pytest.raises(Conflict, match="credit note") as refusal:
            refused()
        assert refusal.value.code == "usage_is_invoiced"
    assert stage.rows("SELECT * FROM entries ORDER BY 1, 2") == before
    assert stage.value("SELECT count(*) FROM usage_amendments") == 0


@pytest.mark.scenario(68)
def test_an_amended_request_is_reversed_and_charged_again(stage):
    tenant = stage.tenant()
    event = stage.event(tenant, input_tokens=0, cached_tokens=0, output_tokens=500, kv_page_ms=0)
    stage.bill(event, stage.event(tenant))
    found = amend(stage, event.request_id, output_tokens=300)
    assert [(part.part, part.amount_nanos) for part in found.amendments] == [
        ("reversal", 300_000), ("replacement", 180_000),
    ]  # fmt: skip
    assert (found.recorded_nanos, found.charged_nanos, found.voided) == (300_000, 180_000, False)
    other = stage.value("SELECT amount_nanos FROM usage_records WHERE request_id <> :r", r=event.request_id)
    assert balance(stage, "usage_unbilled") == 180_000 + other
    linked = stage.rows("SELECT request_id, transfer_id FROM usage_amendments ORDER BY position")
    assert [row["request_id"] for row in linked] == [event.request_id] * 2
    assert {row["transfer_id"] for row in linked} == {part.transfer_id for part in found.amendments}
    assert whole(stage)
    assert stage.reconcile().ledger_drift_nanos == 0
    for bucket in ("1m", "1h"):
        (used,) = reported(stage, tenant, bucket)
        assert (used.requests, used.output_tokens, used.amount_nanos) == (2, 320, 180_000 + other)
    (invoice,) = stage.close()
    lines = {line.kind: line for line in stage.invoice(invoice.id).lines}
    assert (invoice.amount_nanos, lines["output_tokens"].quantity) == (180_000 + other, 320)
    assert whole(stage)


def test_an_amendment_can_be_amended_and_then_voided_once(stage):
    event = stage.event(stage.tenant())
    stage.bill(event)
    amend(stage, event.request_id, output_tokens=30)
    found = amend(stage, event.request_id, input_tokens=200, cached_tokens=200, kv_page_ms=7)
    assert (found.input_tokens, found.cached_tokens, found.output_tokens, found.kv_page_ms) == (200, 200, 30, 7)
    assert found.charged_nanos == 200 * 75 + 30 * 600 + 7
    assert void(stage, event.request_id).charged_nanos == 0
    for refused in (lambda: void(stage, event.request_id), lambda: amend(stage, event.request_id, output_tokens=1)):
        with pytest.raises(Conflict) as refusal:
            refused()
        assert refusal.value.code == "usage_is_voided"
    assert (balance(stage, "usage_unbilled"), whole(stage)) == (0, True)


def test_the_rest_of_an_estimate_is_voided_with_it_and_amends_nothing(stage):
    tenant = stage.tenant()
    estimate = stage.event(tenant, outcome="gateway_gone", estimated=True)
    exact = stage.event(tenant, request_id=estimate.request_id, output_tokens=50)
    stage.bill(estimate)
    stage.bill(exact)
    assert stage.value("SELECT count(*) FROM usage_records WHERE request_id = :r", r=estimate.request_id + REST) == 1
    with pytest.raises(Conflict) as refusal:
        amend(stage, estimate.request_id, output_tokens=1)
    assert refusal.value.code == "usage_has_rest"
    void(stage, estimate.request_id)
    assert (balance(stage, "usage_unbilled"), whole(stage)) == (0, True)
    sums = stage.rows("SELECT * FROM usage_hours")
    counted = [value for row in sums for name, value in row.items() if name.endswith(("requests", "tokens", "nanos"))]
    assert set(counted) == {0}


def test_tiers_are_counted_with_the_amended_quantities(stage):
    tiers = (PriceTier(up_to=100, unit_price_nanos=600), PriceTier(up_to=None, unit_price_nanos=100))
    tiered = TieredPrice(quantity="output_tokens", mode="graduated", tiers=tiers)
    tenant = stage.tenant(card=msgspec.structs.replace(PriceCard.of_all_models(PRICES), tiers=(tiered,)))
    event = stage.event(tenant, input_tokens=0, cached_tokens=0, output_tokens=500, kv_page_ms=0)
    stage.bill(event)
    amend(stage, event.request_id, output_tokens=150)
    (invoice,) = stage.close()
    assert invoice.amount_nanos == 100 * 600 + 50 * 100
    assert (balance(stage, "usage_unbilled"), whole(stage)) == (0, True)


def test_impossible_or_unchanged_quantities_are_refused(stage):
    event = stage.event(stage.tenant())
    stage.bill(event)
    for quantities, param in (
        ({}, "output_tokens"),
        ({"output_tokens": 20}, "output_tokens"),
        ({"cached_tokens": 101}, "cached_tokens"),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            amend(stage, event.request_id, **quantities)
        assert refusal.value.param == param
    assert stage.value("SELECT count(*) FROM usage_amendments") == 0


FORGED = """
INSERT INTO usage_amendments SELECT r.request_id, :position, :part, :tenant_id, r.input_tokens, r.cached_tokens,
    r.aborted_prefill_tokens, r.output_tokens, r.kv_page_ms, r.input_nanos, r.cached_input_nanos,
    r.output_nanos + :more, r.kv_nanos, r.amount_nanos + :more, :transfer, 'forged', 'x', now()
FROM usage_records r WHERE r.request_id = :request_id
"""


def forge(stage, *, request_id: str, position: int, part: str, tenant_id: str, more: int = 0) -> None:
    """Insert an amendment by SQL, with a transfer that moves its amount."""
    amount = stage.value("SELECT amount_nanos FROM usage_records WHERE request_id = :r", r=request_id) + more
    signed = -amount if part == "reversal" else amount
    with unit_of_work(stage.engine) as session:
        transfer = ledger.post(session, "amendment", ledger.earned({tenant_id: signed}))
        session.connection().execute(
            sa.text(FORGED),
            {
                "request_id": request_id, "position": position, "part": part, "tenant_id": tenant_id, "more": more,
                "transfer": transfer,
            },
        )  # fmt: skip


def test_the_database_refuses_an_amendment_that_does_not_fit_the_record(stage):
    tenant = stage.tenant()
    event = stage.event(tenant)
    stage.bill(event)
    fitting = {"request_id": event.request_id, "position": 1, "part": "reversal", "tenant_id": tenant, "more": 0}
    for change, why in (
        ({"more": 1}, "something else than is charged"),
        ({"tenant_id": "tn_other"}, "has no such usage"),
        ({"part": "replacement"}, "is not its next part"),
        ({"position": 2}, "is not its next part"),
        ({"position": 2, "part": "replacement", "more": 5}, "is not its next part"),
    ):
        with pytest.raises(sa.exc.IntegrityError, match=why):
            forge(stage, **fitting | change)
    assert whole(stage)
    forge(stage, **fitting)


def test_a_rest_that_is_amended_alone_is_counted_with_its_estimate_as_before(stage):
    tenant = stage.tenant()
    estimate = stage.event(tenant, outcome="gateway_gone", estimated=True, kv_page_ms=0)
    stage.bill(estimate)
    stage.bill(stage.event(tenant, request_id=estimate.request_id, output_tokens=50, kv_page_ms=0))
    amend(stage, estimate.request_id + REST, output_tokens=1, kv_page_ms=5)
    counts = "SELECT requests, uncached_requests, cached_requests, output_requests, kv_requests FROM usage_hours"
    assert [tuple(row.values()) for row in stage.rows(counts)] == [(1, 1, 1, 1, 1)]
    void(stage, estimate.request_id + REST)
    assert [tuple(row.values()) for row in stage.rows(counts)] == [(1, 1, 1, 1, 0)]
    assert whole(stage)


def test_of_two_admins_at_once_one_voids(stage):
    event = stage.event(stage.tenant())
    stage.bill(event)
    results = together(*[partial(void, stage, event.request_id)] * 6)
    assert sorted(isinstance(each, AmendedUsageView) for each in results) == [False] * 5 + [True]
    assert {each.code for each in results if isinstance(each, AppError)} == {"usage_is_voided"}
    assert (balance(stage, "usage_unbilled"), whole(stage)) == (0, True)
