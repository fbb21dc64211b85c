"""Gives price versions a card with prices by model, rank class and tier, and keeps what tiers adjust.

Existing versions get a card with their four prices.

Revision: 2026_11_24_1010, after 2026_11_24_1000.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "2026_11_24_1010"
down_revision = "2026_11_24_1000"
branch_labels = None
depends_on = None

_PRICES = ("input_nanos", "cached_input_nanos", "output_nanos", "kv_page_second_nanos")
_TOKENS_ONLY = "unit <> 'token' OR amount_nanos = quantity * unit_price_nanos"
_ALL_BUT_PAGES = "unit IN ('page_second', 'page_millisecond') OR amount_nanos = quantity * unit_price_nanos"


def upgrade() -> None:
    op.add_column("price_versions", sa.Column("card", JSONB(), nullable=True))
    op.execute("ALTER TABLE price_versions DISABLE TRIGGER price_versions_written_once")
    op.execute(
        "UPDATE price_versions SET card = jsonb_build_object("
        + ", ".join(f"'{name}', {name}" for name in _PRICES)
        + ")"
    )
    op.execute("ALTER TABLE price_versions ENABLE TRIGGER price_versions_written_once")
    op.alter_column("price_versions", "card", nullable=False)
    for name in _PRICES:
        op.drop_column("price_versions", name)
    _replace_check("transfers", "kind_known", "kind IN ('usage', 'adjustment', 'invoice')", before="ck_transfers_")
    _replace_check("invoice_lines", "unit_known", "unit IN ('token', 'page_second', 'page_millisecond', 'package')")
    _replace_check("invoice_lines", "amount_is_quantity_times_price", _ALL_BUT_PAGES)
    op.alter_column("invoice_lines", "base_model", nullable=True)
    op.alter_column("invoice_lines", "request_count", nullable=True)
    op.add_column("invoice_lines", sa.Column("rank_class", sa.Integer(), nullable=True))
    op.add_column("invoice_lines", sa.Column("tier", sa.Integer(), nullable=True))
    op.add_column("invoice_lines", sa.Column("used_units", sa.Numeric(38, 3), nullable=True))
    op.create_table(
        "usage_adjustments",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("period_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.Column("transfer_id", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("amount_nanos <> 0", name=op.f("ck_usage_adjustments_adjusts_something")),
        sa.ForeignKeyConstraint(["transfer_id"], ["transfers.id"], name="fk_usage_adjustments_transfer_id_transfers"),
        sa.PrimaryKeyConstraint("id", name="pk_usage_adjustments"),
        sa.UniqueConstraint("transfer_id", name="uq_usage_adjustments_transfer_id"),
    )
    op.create_index(
        "ix_usage_adjustments_tenant_id_period_start", "usage_adjustments", ["tenant_id", "period_start"]
    )
    op.execute(
        "CREATE TRIGGER usage_adjustments_written_once BEFORE UPDATE OR DELETE OR TRUNCATE ON usage_adjustments"
        " FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()"
    )


def downgrade() -> None:
    op.drop_table("usage_adjustments")
    op.drop_column("invoice_lines", "used_units")
    op.drop_column("invoice_lines", "tier")
    op.drop_column("invoice_lines", "rank_class")
    op.alter_column("invoice_lines", "request_count", nullable=False)
    op.alter_column("invoice_lines", "base_model", nullable=False)
    _replace_check("invoice_lines", "amount_is_quantity_times_price", _TOKENS_ONLY)
    _replace_check("invoice_lines", "unit_known", "unit IN ('token', 'page_second', 'page_millisecond')")
    _replace_check("transfers", "kind_known", "kind IN ('usage', 'invoice')", after="ck_transfers_")
    for name in _PRICES:
        op.add_column("price_versions", sa.Column(name, sa.BigInteger(), nullable=True))
    op.execute("ALTER TABLE price_versions DISABLE TRIGGER price_versions_written_once")
    op.execute("UPDATE price_versions SET " + ", ".join(f"{name} = (card->>'{name}')::bigint" for name in _PRICES))
    op.execute("ALTER TABLE price_versions ENABLE TRIGGER price_versions_written_once")
    for name in _PRICES:
        op.alter_column("price_versions", name, nullable=False)
    op.create_check_constraint(
        op.f("ck_price_versions_ck_price_versions_prices_not_negative"),
        "price_versions",
        " AND ".join(f"{name} >= 0" for name in _PRICES),
    )
    op.drop_column("price_versions", "card")


def _replace_check(table: str, name: str, rule: str, *, before: str = "", after: str = "") -> None:
    """The first revision named the table twice in its checks: ``before`` and ``after`` are such prefixes."""
    op.drop_constraint(op.f(f"ck_{table}_{before}{name}"), table)
    op.create_check_constraint(op.f(f"ck_{table}_{after}{name}"), table, rule)
