"""The age of the oldest change that waits for publishing: the alarm for a worker that is down."""

import math

from prometheus_client import REGISTRY

from control_plane.publishing.outbox import outbox_age_s
from core import db
from core.settings import PostgresSettings
from tests.fixtures.control_plane.api import running_api
from tests.fixtures.databases import KEPT_CONNECTIONS


def test_the_age_is_that_of_the_oldest_change_that_no_worker_has_published(engine, settings):
    web = db.connect(settings.postgres)
    assert outbox_age_s(web) == 0
    with engine.begin() as connection:
        for age_s in (5, 4000):
            connection.exec_driver_sql(
                "INSERT INTO outbox (kind, field, created_at) VALUES ('keys', 'x', now() - make_interval(secs => %s))",
                (age_s,),
            )
    assert outbox_age_s(web) >= 4000
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM outbox")
    assert outbox_age_s(web) == 0
    web.dispose()


def test_the_age_is_unknown_without_postgres_and_not_zero():
    engine = db.connect(PostgresSettings(postgres_dsn="postgresql+psycopg://127.0.0.1:9/none"))
    assert math.isnan(outbox_age_s(engine))
    engine.dispose()


def test_metrics_that_are_read_after_the_api_has_stopped_open_no_connection(settings, engine):
    with running_api(settings) as api:
        api.anyone.get("/livez").raise_for_status()
    assert math.isnan(REGISTRY.get_sample_value("tenora_control_outbox_age_seconds"))
    with engine.connect() as connection:
        others = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            f" AND application_name <> '{KEPT_CONNECTIONS}'"
        )
        assert connection.exec_driver_sql(others).scalar_one() == 0
