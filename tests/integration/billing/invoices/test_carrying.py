"""Periods below a cent get no invoice, and nothing of them is lost."""

from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from billing.invoices.queries import read_document
from billing.invoicing import closing
from billing.invoicing.drafts import read_drafts
from core import clock
from core.contracts.grants import Prices
from core.db import unit_of_work
from tests.integration.billing.conftest import month_start

MILLICENT = Prices(input_nanos=1_000_000, cached_input_nanos=0, output_nanos=0, kv_page_second_nanos=0)


def months(now: datetime) -> list[datetime]:
    """The starts of the last six months, oldest first."""
    return [month_start(now, ago=ago) for ago in range(6, -1, -1)]


@pytest.fixture
def tenant(stage) -> str:
    return stage.tenant(MILLICENT)


def use(stage, tenant: str, at: datetime, tokens: int) -> None:
    """A tenth of a cent a token."""
    used = stage.event(
        tenant, settled_at_ms=clock.to_ms(at) + 60_000, input_tokens=tokens, cached_tokens=0, output_tokens=0,
        kv_page_ms=0,
    )  # fmt: skip
    stage.bill(used)


def end(stage, tenant: str, at: datetime):
    return closing.close_tenant(stage.engine, tenant, at, scheduled=True)


@pytest.mark.scenario(106)
def test_four_periods_of_a_third_of_a_cent_make_one_invoice_of_a_cent(stage, tenant):
    starts = months(stage.now())
    for start, following in pairwise(starts[:4]):
        use(stage, tenant, start, 3)
        assert end(stage, tenant, following) is None
    use(stage, tenant, starts[3], 3)
    made = end(stage, tenant, starts[4])
    assert (made.total_cents, made.amount_nanos) == (1, 10_000_000)
    with unit_of_work(stage.engine) as session:
        lines = read_document(session, made.id).lines
    assert [(line.kind, line.quantity, line.amount_nanos) for line in lines] == [
        ("uncached_input_tokens", 3, 3_000_000),
        ("uncached_input_tokens", 3, 3_000_000),
        ("uncached_input_tokens", 3, 3_000_000),
        ("uncached_input_tokens", 3, 3_000_000),
        ("carried", 1, -2_000_000),
    ]
    assert [line.covers_from for line in lines[1:4]] == [made_in(stage, tenant), *starts[1:3]]
    unbilled = stage.value(
        "SELECT sum(e.amount_nanos) FROM entries e JOIN accounts a ON a.id = e.account_id"
        " WHERE a.kind = 'usage_unbilled'"
    )
    assert unbilled == 2_000_000
    use(stage, tenant, starts[4], 90)
    following = end(stage, tenant, starts[5])
    assert (following.amount_nanos, following.total_cents) == (92_000_000, 9)


def made_in(stage, tenant: str) -> datetime:
    return stage.value("SELECT min(settled_at) FROM usage_records WHERE tenant_id = :t", t=tenant)


def test_an_explicit_close_finalizes_what_waits_and_a_draft_shows_it(stage, tenant):
    starts = months(stage.now())
    use(stage, tenant, starts[4], 4)
    assert end(stage, tenant, starts[5]) is None
    use(stage, tenant, starts[5], 3)
    drafts = read_drafts(stage.engine, tenant, grace=timedelta(hours=1))
    assert [(draft.amount_nanos, draft.total_cents) for draft in drafts] == [(7_000_000, 1), (0, 0)]
    made = closing.close_tenant(stage.engine, tenant, starts[6])
    assert (made.amount_nanos, made.total_cents) == (7_000_000, 1)
    assert stage.reconcile().unbilled_tokens == 0


@pytest.mark.scenario(57)
def test_a_tenant_that_leaves_gets_a_final_invoice_of_everything_and_later_a_supplementary_one(stage, tenant):
    starts = months(stage.now())
    use(stage, tenant, starts[4], 4)
    assert end(stage, tenant, starts[5]) is None
    use(stage, tenant, starts[5], 2)
    left = starts[5] + timedelta(days=10)
    stage.change("UPDATE subscriptions SET ended_at = :at", at=left)
    final = end(stage, tenant, left)
    assert (final.kind, final.amount_nanos, final.total_cents) == ("final", 6_000_000, 1)
    late = stage.event(
        tenant, settled_at_ms=clock.to_ms(left) - 1_000, input_tokens=6, cached_tokens=0, output_tokens=0, kv_page_ms=0
    )
    stage.bill(late)
    supplementary = end(stage, tenant, starts[6])
    assert (supplementary.kind, supplementary.amount_nanos) == ("supplementary", 6_000_000)
    with unit_of_work(stage.engine) as session:
        assert [line.late_for for line in read_document(session, supplementary.id).lines] == [starts[5]]


def test_free_usage_makes_no_invoice_and_is_on_the_next_one_that_costs_something(stage):
    free = stage.tenant(Prices(input_nanos=0, cached_input_nanos=0, output_nanos=1_000_000, kv_page_second_nanos=0))
    starts = months(stage.now())
    use(stage, free, starts[4], 4)
    assert end(stage, free, starts[5]) is None
    assert closing.close_all(stage.engine).invoices == []
    stage.bill(stage.event(free, input_tokens=0, cached_tokens=0, output_tokens=10, kv_page_ms=0))
    (made,) = closing.close_all(stage.engine).invoices
    with unit_of_work(stage.engine) as session:
        lines = read_document(session, made.id).lines
    used = {line.kind: int(line.quantity) for line in lines if line.quantity}
    assert (made.total_cents, used) == (1, {"uncached_input_tokens": 4, "output_tokens": 10})
