"""Adds what reconciliation compares: sums of usage by replica and hour, the engines' own counts of ended requests, the
stored results of its runs, and amendments of usage.

Records from before do not say whether an engine measured their KV page-time, so it counts as unmeasured.

Revision: 2026_11_24_1100, after 2026_11_24_1070.
"""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_24_1100"
down_revision = "2026_11_24_1070"
branch_labels = None
depends_on = None

_INSTANT = sa.DateTime(timezone=True)
_INSERT_ONLY = ("engine_ended_requests", "reconciliation_runs", "reconciliation_differences", "usage_amendments")

# The hour in which a request's id was made, as core.ids writes it; the epoch for an id of another form.
ID_HOUR = """
CREATE FUNCTION billing_request_hour(request_id text) RETURNS timestamptz LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    ms bigint := 0;
BEGIN
    IF request_id !~ '^req_[0-9a-hjkmnp-tv-z]{26}(\\:rest)?$' THEN
        RETURN to_timestamp(0);
    END IF;
    FOR place IN 5..14 LOOP
        ms := ms * 32 + strpos('0123456789abcdefghjkmnpqrstvwxyz', substr(request_id, place, 1)) - 1;
    END LOOP;
    RETURN to_timestamp((ms / 3600000) * 3600);
END $$;
"""

FILL = """
INSERT INTO usage_replica_hours (
    hour, replica_id, tenant_id, base_model, requests, estimated_requests, input_tokens, aborted_prefill_tokens,
    output_tokens, kv_page_ms, kv_measured_page_ms, kv_unmeasured_requests, changed_at
)
SELECT billing_request_hour(request_id), replica_id, tenant_id, base_model,
    count(*) FILTER (WHERE right(request_id, 5) <> '\\:rest'), count(*) FILTER (WHERE estimated),
    sum(input_tokens), sum(aborted_prefill_tokens), sum(output_tokens), sum(kv_page_ms), 0,
    count(*) FILTER (WHERE right(request_id, 5) <> '\\:rest'), now()
FROM usage_records GROUP BY 1, 2, 3, 4
"""

# What each request used by now: amended requests with the quantities of their newest amendment, voided ones not at all.
USAGE_NOW = """
CREATE VIEW usage_now AS
SELECT request_id, tenant_id, key_id, base_model, adapter_id, revision_id, rank_class, replica_id, outcome, started_at,
    settled_at, late_from, input_tokens, cached_tokens, aborted_prefill_tokens, output_tokens, kv_page_ms, kv_measured,
    first_token_ms, duration_ms, adapter_tier, adapter_load_ms, stall_ms, estimated, price_version_id, input_nanos,
    cached_input_nanos, output_nanos, kv_nanos, amount_nanos, transfer_id
FROM usage_records r
WHERE NOT EXISTS (SELECT FROM usage_amendments a WHERE a.request_id = r.request_id)
UNION ALL
SELECT r.request_id, r.tenant_id, r.key_id, r.base_model, r.adapter_id, r.revision_id, r.rank_class, r.replica_id,
    r.outcome, r.started_at, r.settled_at, r.late_from, a.input_tokens, a.cached_tokens, a.aborted_prefill_tokens,
    a.output_tokens, a.kv_page_ms, r.kv_measured, r.first_token_ms, r.duration_ms, r.adapter_tier, r.adapter_load_ms,
    r.stall_ms, r.estimated, r.price_version_id, a.input_nanos, a.cached_input_nanos, a.output_nanos, a.kv_nanos,
    a.amount_nanos, a.transfer_id
FROM usage_amendments a JOIN usage_records r ON r.request_id = a.request_id
WHERE a.part = 'replacement'
    AND NOT EXISTS (SELECT FROM usage_amendments b WHERE b.request_id = a.request_id AND b.position > a.position)
"""


def upgrade() -> None:
    op.execute("SET LOCAL statement_timeout = 0")
    op.add_column(
        "usage_records", sa.Column("kv_measured", sa.Boolean(), nullable=False, server_default=sa.text("false"))
    )
    op.add_column("usage_hours", _count("kv_measured_page_ms"))
    op.execute(ID_HOUR)
    _create_counts()
    op.execute(FILL)
    _create_runs()
    _create_amendments()
    op.execute(USAGE_NOW)
    for table in _INSERT_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_written_once BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()"
        )


def downgrade() -> None:
    op.execute("DROP VIEW usage_now")
    for table in (*_INSERT_ONLY[::-1], "engine_usage_hours", "usage_replica_hours"):
        op.drop_table(table)
    op.execute("DROP FUNCTION billing_request_hour(text)")
    op.drop_column("usage_hours", "kv_measured_page_ms")
    op.drop_column("usage_records", "kv_measured")


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))


def _texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.String(), nullable=False) for name in names]


def _numbers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]


def _create_counts() -> None:
    op.create_table(
        "usage_replica_hours",
        sa.Column("hour", _INSTANT, nullable=False),
        *_texts("replica_id", "tenant_id", "base_model"),
        *(
            _count(name)
            for name in (
                "requests", "estimated_requests", "input_tokens", "aborted_prefill_tokens", "output_tokens", "kv_page_ms",
                "kv_measured_page_ms", "kv_unmeasured_requests",
            )
        ),
        sa.Column("changed_at", _INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("hour", "replica_id", "tenant_id", "base_model", name="pk_usage_replica_hours"),
    )  # fmt: skip
    op.create_index("ix_usage_replica_hours_changed_at", "usage_replica_hours", ["changed_at"])
    op.create_table(
        "engine_usage_hours",
        sa.Column("hour", _INSTANT, nullable=False),
        *_texts("replica_id", "boot_id", "tenant_id", "base_model"),
        *_numbers("requests", "prompt_tokens", "output_tokens", "kv_page_ms", "kv_unmeasured_requests"),
        sa.Column("changed_at", _INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("hour", "replica_id", "boot_id", "tenant_id", name="pk_engine_usage_hours"),
        sa.CheckConstraint(
            "requests >= 0 AND prompt_tokens >= 0 AND output_tokens >= 0 AND kv_page_ms >= 0"
            " AND kv_unmeasured_requests >= 0",
            name=op.f("ck_engine_usage_hours_counts_possible"),
        ),
    )
    op.create_index("ix_engine_usage_hours_changed_at", "engine_usage_hours", ["changed_at"])
    op.create_table(
        "engine_ended_requests",
        sa.Column("request_id", sa.String(collation="C"), nullable=False),
        *_texts("replica_id", "boot_id", "tenant_id", "base_model"),
        *_numbers("prompt_tokens", "output_tokens"),
        sa.Column("kv_page_ms", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", _INSTANT, nullable=False),
        sa.Column("reported_at", _INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("request_id", "replica_id", "boot_id", name="pk_engine_ended_requests"),
        sa.CheckConstraint(
            "prompt_tokens >= 0 AND output_tokens >= 0 AND kv_page_ms >= 0",
            name=op.f("ck_engine_ended_requests_counts_possible"),
        ),
    )
    op.create_index("ix_engine_ended_requests_reported_at", "engine_ended_requests", ["reported_at"])


def _create_runs() -> None:
    op.create_table(
        "reconciliation_runs",
        *_texts("id", "mode"),
        sa.Column("started_at", _INSTANT, nullable=False),
        sa.Column("finished_at", _INSTANT, nullable=False),
        sa.Column("changed_since", _INSTANT, nullable=True),
        *_numbers(
            "hours", "engine_tokens", "ledger_tokens", "explained_tokens", "unexplained_tokens", "engine_kv_page_ms",
            "ledger_kv_page_ms", "explained_kv_page_ms", "unexplained_kv_page_ms", "unexplained_nanos", "differences",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_reconciliation_runs"),
        sa.CheckConstraint("mode IN ('changed', 'full')", name=op.f("ck_reconciliation_runs_mode_known")),
        sa.CheckConstraint(
            "(mode = 'full') = (changed_since IS NULL)", name=op.f("ck_reconciliation_runs_mode_fits_start")
        ),
        sa.CheckConstraint("hours >= 0 AND differences >= 0", name=op.f("ck_reconciliation_runs_counts_possible")),
    )  # fmt: skip
    op.create_table(
        "reconciliation_differences",
        *_texts("run_id"),
        sa.Column("position", sa.Integer(), nullable=False),
        *_texts("kind", "subject"),
        *(sa.Column(name, sa.String(), nullable=True) for name in ("replica_id", "tenant_id", "base_model")),
        sa.Column("hour", _INSTANT, nullable=True),
        *_texts("unit"),
        *_numbers("expected", "found", "explained", "unexplained"),
        sa.Column("request_ids", sa.ARRAY(sa.String()), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "position", name="pk_reconciliation_differences"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["reconciliation_runs.id"], name="fk_reconciliation_differences_run_id_reconciliation_runs",
            deferrable=True, initially="DEFERRED",
        ),
        sa.CheckConstraint(
            "unit IN ('token', 'page_millisecond', 'nanodollar', 'cent', 'document')",
            name=op.f("ck_reconciliation_differences_unit_known"),
        ),
    )  # fmt: skip


def _create_amendments() -> None:
    op.create_table(
        "usage_amendments",
        sa.Column("request_id", sa.String(collation="C"), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        *_texts("part", "tenant_id"),
        *_numbers(
            "input_tokens", "cached_tokens", "aborted_prefill_tokens", "output_tokens", "kv_page_ms", "input_nanos",
            "cached_input_nanos", "output_nanos", "kv_nanos", "amount_nanos",
        ),
        *_texts("transfer_id", "reason", "actor"),
        sa.Column("created_at", _INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("request_id", "position", name="pk_usage_amendments"),
        sa.ForeignKeyConstraint(["transfer_id"], ["transfers.id"], name="fk_usage_amendments_transfer_id_transfers"),
        sa.UniqueConstraint("transfer_id", name="uq_usage_amendments_transfer_id"),
        sa.CheckConstraint("part IN ('reversal', 'replacement')", name=op.f("ck_usage_amendments_part_known")),
        sa.CheckConstraint("position > 0", name=op.f("ck_usage_amendments_position_positive")),
        sa.CheckConstraint(
            "input_tokens >= 0 AND output_tokens >= 0 AND kv_page_ms >= 0 AND cached_tokens BETWEEN 0 AND input_tokens"
            " AND aborted_prefill_tokens BETWEEN 0 AND input_tokens",
            name=op.f("ck_usage_amendments_quantities_possible"),
        ),
        sa.CheckConstraint(
            "input_nanos >= 0 AND cached_input_nanos >= 0 AND output_nanos >= 0 AND kv_nanos >= 0"
            " AND amount_nanos = input_nanos + cached_input_nanos + output_nanos + kv_nanos",
            name=op.f("ck_usage_amendments_amount_is_sum_of_parts"),
        ),
    )  # fmt: skip
    op.create_index("ix_usage_amendments_tenant_id", "usage_amendments", ["tenant_id"])
