"""Old windows are deleted in bounded steps; hours that are shared out stay, and no other way of deleting works."""

import pytest
import sqlalchemy as sa

from billing import metrics
from billing.costs.hours import allocate_due
from billing.costs.rates import MS_PER_HOUR
from billing.costs.settings import CostSettings
from billing.costs.window_reader import delete_old

DAY_S = 86_400


def kept(**changes) -> CostSettings:
    return CostSettings(**{"cost_windows_kept_days": 30, "cost_allocation_delay_s": 0} | changes)


def starts(costs) -> list[int]:
    """Days before the stage's hour in which the stored windows begin."""
    rows = costs.stage.rows("SELECT start_ms FROM replica_cost_windows ORDER BY start_ms")
    return [(costs.hour_ms - row["start_ms"]) // (DAY_S * 1_000) for row in rows]


def day(costs, ago: int, **changes):
    return costs.window(-ago * DAY_S, -ago * DAY_S + 10, final=True, boot_id=f"boot_{ago}", **changes)


def test_windows_beyond_the_kept_days_are_deleted_and_their_shared_out_hours_stay(costs, as_billing):
    costs.rate(from_ms=costs.hour_ms - 400 * 24 * MS_PER_HOUR)
    costs.store(*(day(costs, ago) for ago in (400, 31, 29, 0)))
    assert allocate_due(costs.engine, kept()).hours == 4
    before = costs.stage.rows("SELECT * FROM cost_rows ORDER BY hour_ms")
    unshared = metrics.COST_WINDOWS_UNSHARED._value.get()
    assert delete_old(as_billing, kept()) == 2
    assert starts(costs) == [29, 0]
    assert costs.stage.rows("SELECT * FROM cost_rows ORDER BY hour_ms") == before
    assert metrics.COST_WINDOWS_UNSHARED._value.get() == unshared
    assert (delete_old(as_billing, kept()), allocate_due(costs.engine, kept()).hours) == (0, 0)


def test_an_old_hour_without_a_rate_loses_its_windows_and_is_counted(costs, as_billing):
    costs.store(day(costs, 31), day(costs, 1))
    unshared = metrics.COST_WINDOWS_UNSHARED._value.get()
    assert delete_old(as_billing, kept()) == 1
    assert (starts(costs), metrics.COST_WINDOWS_UNSHARED._value.get()) == ([1], unshared + 1)
    costs.rate(from_ms=costs.hour_ms - 400 * 24 * MS_PER_HOUR)
    allocate_due(costs.engine, kept())
    hours = costs.stage.rows("SELECT hour_ms FROM cost_hours")
    assert [row["hour_ms"] for row in hours] == [costs.hour_ms - 24 * MS_PER_HOUR]


def test_many_old_windows_are_deleted_in_batches(costs, as_billing):
    costs.store(*(day(costs, ago) for ago in range(40, 47)))
    assert delete_old(as_billing, kept(cost_batch_windows_max=3)) == 7
    assert starts(costs) == []


def test_the_last_week_cannot_be_deleted_and_nothing_by_hand(costs, as_billing):
    costs.store(day(costs, 6))
    with as_billing.begin() as connection:
        found = connection.execute(sa.text("SELECT windows FROM billing_delete_cost_windows(0, 100)")).scalar_one()
    assert (found, starts(costs)) == (0, [6])
    for sql in (
        "SET tenora.deleting_cost_windows = 'on'; DELETE FROM replica_cost_windows",
        "UPDATE replica_cost_windows SET busy_ms = 0",
    ):
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"), as_billing.begin() as connection:
            connection.exec_driver_sql(sql)
    for sql in ("DELETE FROM replica_cost_windows", "TRUNCATE replica_cost_windows"):
        with pytest.raises(sa.exc.IntegrityError, match="written once"):
            costs.stage.change(sql)
