"""Lets money that Stripe took or returned without a document be booked, and money that came to us again be a row, too.

Revision: 2026_11_25_1410, after 2026_11_25_1040.
"""

from alembic import op

revision = "2026_11_25_1410"
down_revision = "2026_11_25_1040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE returned_payments"
        " ADD COLUMN booked_cents BIGINT NOT NULL DEFAULT 0,"
        " ADD COLUMN transfer_id TEXT,"
        " ADD CONSTRAINT uq_returned_payments_transfer_id UNIQUE (transfer_id),"
        " DROP CONSTRAINT ck_returned_payments_amount_not_negative,"
        " ADD CONSTRAINT ck_returned_payments_transfer_books CHECK ((booked_cents = 0) = (transfer_id IS NULL)),"
        " ADD CONSTRAINT ck_returned_payments_booked_of_amount CHECK (abs(booked_cents) <= abs(amount_cents))"
    )
    op.execute("ALTER TABLE returned_payments ALTER COLUMN booked_cents DROP DEFAULT")


def downgrade() -> None:
    op.execute(
        "ALTER TABLE returned_payments"
        " DROP COLUMN booked_cents,"
        " DROP COLUMN transfer_id,"
        " ADD CONSTRAINT ck_returned_payments_amount_not_negative CHECK (amount_cents >= 0)"
    )
