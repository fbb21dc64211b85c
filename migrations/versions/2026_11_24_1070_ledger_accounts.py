"""The accounts and transfers of credits, payments, corrections and tax.

Revision: 2026_11_24_1070, after 2026_11_24_1060.
"""

from alembic import op

revision = "2026_11_24_1070"
down_revision = "2026_11_24_1060"
branch_labels = None
depends_on = None

_TENANTS = "'usage_unbilled', 'receivable'"
_PLATFORM = "'revenue', 'rounding'"
_TENANTS_NOW = f"{_TENANTS}, 'customer_balance', 'credits_paid', 'credits_promotional'"
_PLATFORM_NOW = f"{_PLATFORM}, 'cash', 'promotions', 'breakage', 'tax_payable', 'bad_debt'"
_KINDS = "'usage', 'adjustment', 'invoice'"
_KINDS_NOW = (
    f"{_KINDS}, 'amendment', 'credit_note', 'payment', 'refund', 'void', 'write_off', 'recovery', 'credit_grant',"
    " 'credit_burn', 'credit_lapse', 'balance'"
)


def upgrade() -> None:
    _check_accounts(_TENANTS_NOW, _PLATFORM_NOW, before="ck_accounts_")
    _replace_check("transfers", "kind_known", f"kind IN ({_KINDS_NOW})")


def downgrade() -> None:
    _check_accounts(_TENANTS, _PLATFORM, after="ck_accounts_")
    _replace_check("transfers", "kind_known", f"kind IN ({_KINDS})")


def _check_accounts(tenants: str, platform: str, *, before: str = "", after: str = "") -> None:
    """The first revision named the table twice in its checks: ``before`` and ``after`` are such prefixes."""
    platforms_own = f"(tenant_id IS NULL) = (kind IN ({platform}))"
    _replace_check("accounts", "kind_known", f"kind IN ({tenants}, {platform})", before=before, after=after)
    _replace_check("accounts", "owner_fits_kind", platforms_own, before=before, after=after)


def _replace_check(table: str, name: str, rule: str, *, before: str = "", after: str = "") -> None:
    op.drop_constraint(op.f(f"ck_{table}_{before}{name}"), table)
    op.create_check_constraint(op.f(f"ck_{table}_{after}{name}"), table, rule)
