"""Keys from before a scope: those with every earlier scope get it, and those with fewer do not."""

import secrets

import pytest
import sqlalchemy as sa
from alembic import command

from core import db
from tests.conftest import alembic_config, create_database

EVERY = ["inference", "adapters:read", "adapters:write", "usage:read", "billing:read", "keys:write"]


@pytest.mark.parametrize(
    ("before_it", "revision", "every", "scope"),
    [
        ("2026_11_24_1040", "2026_11_24_1050", EVERY, "notifications:write"),
        ("2026_11_25_1500", "2026_11_26_1440", [*EVERY, "billing:write", "notifications:write"], "audit:read"),
    ],
)
def test_keys_with_every_scope_get_the_new_one_and_lose_it_on_the_way_back(
    postgres_server, before_it, revision, every, scope
):
    settings = create_database(postgres_server, f"scopes_{secrets.token_hex(6)}")
    config, engine = alembic_config(settings), db.connect(settings)
    command.upgrade(config, before_it)
    rows = {
        "key_all": ("tn_1", every),
        "key_some": ("tn_1", ["inference", "billing:read"]),
        "key_admin": (None, ["admin"]),
    }
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO plans (id, name, created_at) VALUES ('pl_1', 'p', now())"))
        connection.execute(
            sa.text(
                "INSERT INTO tenants (id, name, plan_id, status, limit_overrides, created_at)"
                " VALUES ('tn_1', 't', 'pl_1', 'active', '{}', now())"
            )
        )
        for key, (tenant, scopes) in rows.items():
            connection.execute(
                sa.text(
                    "INSERT INTO api_keys (id, tenant_id, name, key_hash, redacted, scopes, created_at)"
                    " VALUES (:id, :tenant, 'k', :id, 'k', :scopes, now())"
                ),
                {"id": key, "tenant": tenant, "scopes": scopes},
            )

    def found() -> dict[str, list[str]]:
        with engine.connect() as connection:
            return dict(connection.execute(sa.text("SELECT id, scopes FROM api_keys")).all())

    before = found()
    command.upgrade(config, revision)
    assert found() == before | {"key_all": sorted([*every, scope])}
    command.downgrade(config, before_it)
    assert {key: sorted(scopes) for key, scopes in found().items()} == {k: sorted(v) for k, v in before.items()}
    engine.dispose()
