"""Any order of alerts, attempts, deaths of workers, repairs and replays: no message is lost, doubled in the database,
or sent while another worker holds it.
"""

from datetime import timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from billing.notifications import endpoints, replays
from billing.notifications.delivery_queue import DeliveryQueue
from billing.notifications.retries import SendResult
from billing.notifications.settings import DeliverySettings
from core.db import unit_of_work
from tests.fixtures.examples import examples
from tests.integration.billing.notifications.conftest import NotificationStage


def machine_of(stage: NotificationStage) -> type[RuleBasedStateMachine]:
    class Deliveries(RuleBasedStateMachine):
        """Two workers and a tenant with two endpoints, on a new tenant for each run."""

        held = Bundle("held")
        number = 0

        def __init__(self) -> None:
            super().__init__()
            type(self).number += 1
            self.tenant = f"tn_{type(self).number}"
            settings = DeliverySettings(
                notifications_endpoint_connections_max=2, notifications_tenant_connections_max=3
            )
            self.queue = DeliveryQueue(stage.engine, settings, stage.clock)
            self.settings = settings
            self.endpoints = [stage.endpoint(self.tenant, f"https://example.com/{n}")[0] for n in range(2)]
            self.written: set[str] = set()
            self.accepted: set[tuple[str, str]] = set()
            self.leases: dict[str, tuple[int, object]] = {}

        def rows(self):
            return stage.rows("SELECT * FROM notification_deliveries WHERE tenant_id = :t", t=self.tenant)

        @rule(key=st.integers(0, 5))
        def alert(self, key):
            written = stage.notify(self.tenant, f"spend:{key}")
            assert (written is None) == (f"spend:{key}" in self.written)
            self.written.add(f"spend:{key}")

        @rule(target=held, limit=st.integers(1, 4))
        def claim(self, limit):
            claimed = [each for each in self.queue.claim(limit) if each.tenant_id == self.tenant]
            return multiple(*claimed)

        @rule(delivery=consumes(held), outcome=st.sampled_from(["accepted", "refused", "gone"]))
        def answer(self, delivery, outcome):
            before = {row["id"]: row for row in self.rows()}[delivery.id]
            result = SendResult() if outcome == "accepted" else SendResult(error="refused", gone=outcome == "gone")
            self.queue.record(delivery, result)
            after = {row["id"]: row for row in self.rows()}[delivery.id]
            if before["attempts"] != delivery.attempts:
                assert after == before, "a late result changes nothing"
            elif outcome == "accepted":
                assert after["state"] == "delivered"
                self.accepted.add((delivery.notification_id, delivery.endpoint_id))
            else:
                assert after["state"] in ("pending", "failed")

        @rule(delivery=consumes(held))
        def worker_dies(self, delivery):
            """What it held stays leased."""

        @rule()
        def leases_end(self):
            stage.offset += timedelta(seconds=self.settings.notifications_lease_s + 1)

        @rule(hours=st.sampled_from([0, 1, 5, 40, 80]), seconds=st.integers(1, 300))
        def time_passes(self, hours, seconds):
            stage.offset += timedelta(hours=hours, seconds=seconds)

        @rule(which=st.integers(0, 1), status=st.sampled_from(["active", "disabled"]))
        def change(self, which, status):
            with unit_of_work(stage.engine) as session:
                endpoints.change(
                    session, tenant_id=self.tenant, endpoint_id=self.endpoints[which], event_types=None, status=status
                )

        @rule(which=st.integers(0, 1))
        def replay_missed(self, which):
            endpoint_id = self.endpoints[which]
            if stage.state(endpoint_id)["status"] != "active":
                return
            since = stage.row("SELECT clock_timestamp() - interval '1 day' AS at")["at"]
            with unit_of_work(stage.engine) as session:
                replays.replay_missed(session, tenant_id=self.tenant, endpoint_id=endpoint_id, since=since)
            found = [row for row in self.rows() if row["endpoint_id"] == endpoint_id]
            assert "failed" not in {row["state"] for row in found}
            assert len(found) >= len(self.written), "also what was never queued for it"

        @invariant()
        def every_message_has_one_delivery_for_each_endpoint_at_most_and_one_outcome(self):
            rows = self.rows()
            pairs = [(row["notification_id"], row["endpoint_id"]) for row in rows]
            assert len(set(pairs)) == len(pairs)
            counts = stage.row(
                "SELECT count(*) AS n FROM notifications WHERE tenant_id = :t AND event_type LIKE 'spend%'",
                t=self.tenant,
            )
            assert counts["n"] == len(self.written)
            for row in rows:
                assert 0 <= row["attempts_before"] <= row["attempts"]
                if row["state"] == "pending":
                    assert (
                        row["next_attempt_at"]
                        <= row["queued_at"]
                        + timedelta(seconds=self.settings.notifications_retry_s + self.settings.notifications_lease_s)
                        + stage.offset
                    )

        @invariant()
        def at_most_as_many_run_as_allowed(self):
            running = stage.rows(
                "SELECT endpoint_id, count(*) AS n FROM notification_deliveries WHERE tenant_id = :t"
                " AND leased_until > clock_timestamp() + :offset GROUP BY endpoint_id",
                t=self.tenant,
                offset=stage.offset,
            )
            assert all(each["n"] <= 2 for each in running)
            assert sum(each["n"] for each in running) <= 3

        def teardown(self):
            """After the repair everything arrives."""
            for endpoint_id in self.endpoints:
                with unit_of_work(stage.engine) as session:
                    endpoints.change(
                        session, tenant_id=self.tenant, endpoint_id=endpoint_id, event_types=None, status="active"
                    )
                    since = stage.row("SELECT clock_timestamp() - interval '1 day' AS at")["at"]
                    replays.replay_missed(session, tenant_id=self.tenant, endpoint_id=endpoint_id, since=since)
            stage.offset += timedelta(hours=2)
            while claimed := self.queue.claim(50):
                for each in claimed:
                    self.queue.record(each, SendResult())
            rows = self.rows()
            assert {row["state"] for row in rows} <= {"delivered"}
            arrived = {(row["notification_id"], row["endpoint_id"]) for row in rows}
            assert self.accepted <= arrived
            spend = stage.rows(
                "SELECT id FROM notifications WHERE tenant_id = :t AND event_type LIKE 'spend%'", t=self.tenant
            )
            assert {(row["id"], endpoint_id) for row in spend for endpoint_id in self.endpoints} <= arrived

    return Deliveries


@pytest.mark.hypothesis
def test_no_order_of_events_loses_or_doubles_a_message(alerts):
    run_state_machine_as_test(machine_of(alerts), settings=examples(60, quick=6, stateful_step_count=25, deadline=None))
