"""Adds the terms of tenants: calendars, discounts, price overrides, drafts of plan versions and the
end of a subscription; and the invoice lines that they make.

Every tenant with a plan gets a subscription, so that fees are billed without usage.

Revision: 2026_11_24_1110, after 2026_11_24_1100.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "2026_11_24_1110"
down_revision = "2026_11_24_1100"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)

_USAGE_KINDS = (
    "'input_tokens', 'uncached_input_tokens', 'cached_input_tokens', 'output_tokens', 'kv_page_seconds'"
)
_NEW_KINDS = (
    "'adapter_storage', 'pinned_slots', 'cold_loads', 'base_fee', 'proration', 'discount', 'coupon', 'commitment',"
    " 'carried'"
)
_OLD_UNITS = "'token', 'page_second', 'page_millisecond', 'package'"
_LINE_RULES = (
    ("kind_known", f"kind IN ({_USAGE_KINDS}, {_NEW_KINDS})", f"kind IN ({_USAGE_KINDS})"),
    (
        "unit_known",
        f"unit IN ({_OLD_UNITS}, 'gb_hour', 'slot_hour', 'load', 'amount')",
        f"unit IN ({_OLD_UNITS})",
    ),
    (
        "counts_something",
        "quantity > 0 AND request_count >= 0 AND (unit_price_nanos >= 0 AND amount_nanos >= 0"
        " OR kind IN ('proration', 'discount', 'coupon', 'carried'))",
        "quantity > 0 AND request_count >= 0 AND unit_price_nanos >= 0 AND amount_nanos >= 0",
    ),
    (
        "amount_is_quantity_times_price",
        "unit IN ('page_second', 'page_millisecond', 'gb_hour', 'slot_hour')"
        " OR amount_nanos = quantity * unit_price_nanos",
        "unit IN ('page_second', 'page_millisecond') OR amount_nanos = quantity * unit_price_nanos",
    ),
)

# Only the first row of a tenant may begin in the past: with a calendar, nothing was billed before it.
GUARDS = """
CREATE FUNCTION billing_refuse_past_terms() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.effective_from < now() AND NOT (
        TG_TABLE_NAME = 'tenant_calendars' AND NOT EXISTS (SELECT FROM tenant_calendars WHERE tenant_id = NEW.tenant_id)
    ) THEN
        RAISE EXCEPTION 'INSERT into % refused: % is in the past', TG_TABLE_NAME, NEW.effective_from
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER tenant_calendars_not_past BEFORE INSERT ON tenant_calendars
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_past_terms();
CREATE TRIGGER price_overrides_not_past BEFORE INSERT ON price_overrides
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_past_terms();
CREATE TRIGGER discounts_not_past BEFORE INSERT ON discounts
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_past_terms();

CREATE FUNCTION plan_drafts_published_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.published_version_id IS NOT NULL THEN
        RAISE EXCEPTION 'UPDATE of draft % refused: it is published', OLD.id USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER plan_drafts_published_once BEFORE UPDATE ON plan_drafts
    FOR EACH ROW EXECUTE FUNCTION plan_drafts_published_once();
"""

_WRITTEN_ONCE = ("tenant_calendars", "price_overrides", "discounts", "discount_ends", "period_states")


def upgrade() -> None:
    for name, rule, _ in _LINE_RULES:
        op.drop_constraint(op.f(f"ck_invoice_lines_{name}"), "invoice_lines")
        op.create_check_constraint(op.f(f"ck_invoice_lines_{name}"), "invoice_lines", rule)
    op.alter_column("invoice_lines", "price_version_id", nullable=True)
    op.create_check_constraint(
        op.f("ck_invoice_lines_usage_has_a_price"), "invoice_lines", "price_version_id IS NOT NULL OR unit = 'amount'"
    )
    op.alter_column("invoice_lines", "quantity", type_=sa.Numeric(38, 9))
    op.alter_column("invoice_lines", "used_units", type_=sa.Numeric(38, 9))
    op.add_column("invoice_lines", sa.Column("description", sa.String(), nullable=True))
    op.add_column("invoice_lines", sa.Column("source_id", sa.String(), nullable=True))
    op.add_column("invoice_lines", sa.Column("covers_from", INSTANT, nullable=True))
    op.add_column("invoice_lines", sa.Column("covers_until", INSTANT, nullable=True))
    op.drop_constraint(op.f("ck_tenants_status_known"), "tenants")
    op.create_check_constraint(
        op.f("ck_tenants_status_known"), "tenants", "status IN ('active', 'suspended', 'closed')"
    )
    _adjustments()
    _tables()
    op.execute(GUARDS)
    for table in _WRITTEN_ONCE:
        op.execute(
            f"CREATE TRIGGER {table}_written_once BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()"
        )
    op.execute(
        "INSERT INTO subscriptions (tenant_id, created_at) SELECT tenant_id, min(created_at) FROM plan_assignments"
        " GROUP BY tenant_id ON CONFLICT DO NOTHING"
    )


def _adjustments() -> None:
    """Of two assignments from the same instant on, the one that was made last holds."""
    op.drop_constraint("pk_plan_assignments", "plan_assignments")
    op.create_primary_key("pk_plan_assignments", "plan_assignments", ["tenant_id", "effective_from", "created_at"])
    op.add_column("subscriptions", sa.Column("ended_at", INSTANT, nullable=True))
    op.add_column("usage_adjustments", sa.Column("usage_nanos", sa.BigInteger(), nullable=True))
    op.execute("ALTER TABLE usage_adjustments DISABLE TRIGGER usage_adjustments_written_once")
    op.execute("UPDATE usage_adjustments SET usage_nanos = amount_nanos")
    op.execute("ALTER TABLE usage_adjustments ENABLE TRIGGER usage_adjustments_written_once")
    op.alter_column("usage_adjustments", "usage_nanos", nullable=False)


def _tables() -> None:
    op.create_table(
        "tenant_calendars",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("effective_from", INSTANT, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("interval", sa.String(), nullable=False),
        sa.Column("zone", sa.String(), nullable=False),
        sa.Column("anchor", sa.Date(), nullable=True),
        sa.CheckConstraint(
            "interval IN ('week', 'month', 'quarter', 'year')", name=op.f("ck_tenant_calendars_interval_known")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "effective_from", "created_at", name="pk_tenant_calendars"),
    )
    op.create_table(
        "price_overrides",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("price_version_id", sa.String(), nullable=True),
        sa.Column("effective_from", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=True),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.CheckConstraint("expires_at > effective_from", name=op.f("ck_price_overrides_expires_later")),
        sa.ForeignKeyConstraint(
            ["price_version_id"], ["price_versions.id"], name="fk_price_overrides_price_version_id_price_versions"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_price_overrides"),
    )
    op.create_index("ix_price_overrides_tenant_id", "price_overrides", ["tenant_id"])
    op.create_table(
        "discounts",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("percent_hundredths", sa.Integer(), nullable=True),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=True),
        sa.Column("duration", sa.String(), nullable=False),
        sa.Column("periods", sa.Integer(), nullable=True),
        sa.Column("effective_from", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=True),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.CheckConstraint(
            "(percent_hundredths IS NULL) <> (amount_nanos IS NULL)", name=op.f("ck_discounts_percent_or_amount")
        ),
        sa.CheckConstraint("percent_hundredths BETWEEN 1 AND 10000", name=op.f("ck_discounts_percent_possible")),
        sa.CheckConstraint("amount_nanos > 0", name=op.f("ck_discounts_amount_positive")),
        sa.CheckConstraint("duration IN ('once', 'periods', 'forever')", name=op.f("ck_discounts_duration_known")),
        sa.CheckConstraint(
            "(duration = 'periods') = (periods IS NOT NULL) AND periods > 0", name=op.f("ck_discounts_periods_fit")
        ),
        sa.CheckConstraint("expires_at > effective_from", name=op.f("ck_discounts_expires_later")),
        sa.PrimaryKeyConstraint("id", name="pk_discounts"),
    )
    op.create_index("ix_discounts_tenant_id", "discounts", ["tenant_id"])
    op.create_table(
        "discount_ends",
        sa.Column("discount_id", sa.String(), nullable=False),
        sa.Column("ended_at", INSTANT, nullable=False),
        sa.ForeignKeyConstraint(["discount_id"], ["discounts.id"], name="fk_discount_ends_discount_id_discounts"),
        sa.PrimaryKeyConstraint("discount_id", name="pk_discount_ends"),
    )
    op.create_table(
        "period_states",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("period_end", INSTANT, nullable=False),
        sa.Column("state", JSONB(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "period_end", name="pk_period_states"),
    )
    op.create_table(
        "plan_drafts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("base_version", sa.Integer(), nullable=False),
        sa.Column("limits", JSONB(), nullable=False),
        sa.Column("prices", JSONB(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("published_version_id", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name="fk_plan_drafts_plan_id_plans"),
        sa.ForeignKeyConstraint(
            ["published_version_id"], ["plan_versions.id"], name="fk_plan_drafts_published_version_id_plan_versions"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_plan_drafts"),
    )
    op.create_index("ix_plan_drafts_plan_id", "plan_drafts", ["plan_id"])


def downgrade() -> None:
    op.drop_constraint(op.f("ck_tenants_status_known"), "tenants")
    op.create_check_constraint(op.f("ck_tenants_status_known"), "tenants", "status IN ('active', 'suspended')")
    for table in ("plan_drafts", "period_states", "discount_ends", "discounts", "price_overrides"):
        op.drop_table(table)
    op.drop_table("tenant_calendars")
    op.execute("DROP FUNCTION billing_refuse_past_terms(); DROP FUNCTION plan_drafts_published_once()")
    op.drop_column("usage_adjustments", "usage_nanos")
    op.drop_column("subscriptions", "ended_at")
    op.drop_constraint("pk_plan_assignments", "plan_assignments")
    op.create_primary_key("pk_plan_assignments", "plan_assignments", ["tenant_id", "effective_from"])
    for column in ("covers_until", "covers_from", "source_id", "description"):
        op.drop_column("invoice_lines", column)
    op.drop_constraint(op.f("ck_invoice_lines_usage_has_a_price"), "invoice_lines")
    op.alter_column("invoice_lines", "price_version_id", nullable=False)
    op.alter_column("invoice_lines", "used_units", type_=sa.Numeric(38, 3))
    op.alter_column("invoice_lines", "quantity", type_=sa.Numeric(38, 3))
    for name, _, rule in _LINE_RULES:
        op.drop_constraint(op.f(f"ck_invoice_lines_{name}"), "invoice_lines")
        op.create_check_constraint(op.f(f"ck_invoice_lines_{name}"), "invoice_lines", rule)
