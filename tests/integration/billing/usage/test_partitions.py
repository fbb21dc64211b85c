"""Usage records have a partition for each coming month, whatever has happened to another month."""

from datetime import timedelta

from billing.usage.partitions import add_partitions
from core import clock
from core.ids import first_id_of_ms

PARTITIONS = """
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'usage_records'::regclass ORDER BY 1
"""
COPY = """
INSERT INTO usage_records
SELECT (jsonb_populate_record(r, jsonb_build_object('request_id', CAST(:id AS text)))).* FROM usage_records r LIMIT 1
"""


def partitions(stage) -> list[str]:
    return [row["relname"] for row in stage.rows(PARTITIONS)]


def test_a_month_whose_records_are_in_the_default_partition_stops_no_other_month(stage):
    stage.bill(stage.event(stage.tenant()))
    add_partitions(stage.engine)
    *_, broken, last, default = partitions(stage)
    assert default == "usage_records_default"
    for name in (broken, last):
        stage.change(f"DROP TABLE partitions.{name}")
    month = stage.value("SELECT date_trunc('month', now(), 'UTC') + interval '2 months'") + timedelta(days=1)
    stage.force(COPY, id=first_id_of_ms("req", clock.to_ms(month)))
    add_partitions(stage.engine)
    assert broken not in partitions(stage)
    assert last in partitions(stage)
    assert stage.value("SELECT count(*) FROM usage_records") == 2
