"""One-time operations of an operator: migrate the database, prepare the bucket, create, list and revoke admin keys,
name base models, and rebuild the published snapshot.

Each operation imports the rooms and libraries that no other one needs: a command should answer at once.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlmodel import Session

from control_plane import database_roles, tenant_scope
from core import db
from core.api_keys import is_well_formed, mint_key
from core.errors import Unprocessable
from core.settings import KeySettings, PostgresSettings

if TYPE_CHECKING:
    from control_plane.api_keys.schemas import ApiKeyView
    from control_plane.publishing.snapshot_store import Position
    from control_plane.registry.schemas import BaseModelView
    from control_plane.settings import ControlSettings

_OPERATOR: Final = "operator"  # the actor in the audit trail of a command
_BASE_MODELS_MAX: Final = 1000


def migrate(settings: PostgresSettings, folder: Path | None = None) -> list[str]:
    """Migrate the database to the newest version and grant the processes' roles their privileges. Returns the roles
    that do not exist. ``folder`` is the repository's ``migrations`` folder. Raises Unprocessable where there are no
    migrations.
    """
    from alembic import command
    from alembic.config import Config

    folder = folder or Path(__file__).resolve().parent.parent / "migrations"
    file = folder / "alembic.ini"
    if not file.exists():
        raise Unprocessable(
            f"There are no migrations at {folder}. Run this command from a checkout of the repository or from an "
            "editable installation of it ('pip install --editable'); the wheel does not contain them."
        )
    config = Config(file)
    config.attributes["settings"] = settings
    command.upgrade(config, "head")
    engine = db.connect(settings)
    try:
        return database_roles.grant_privileges(engine)
    finally:
        engine.dispose()


def bootstrap(postgres: PostgresSettings, keys: KeySettings, key_file: Path) -> str:
    """Make sure that ``key_file`` holds an admin key and that the database has its row. Returns a summary of the
    changes.

    The file is written before the row, so a crash between the two loses nothing: the next run stores the row.
    """
    from control_plane.api_keys import service as api_keys

    made = "kept"
    if key_file.exists():
        secret = key_file.read_text().strip()
        if not is_well_formed(secret) or not secret.startswith("tnr_admin_"):
            raise Unprocessable(f"{key_file} does not hold an admin key. Move it away and run this command again.")
    else:
        secret = mint_key("admin")
        _write_private(key_file, secret)
        made = "minted"
    with _database(postgres) as session:
        stored = api_keys.store_admin_key(session, secret, keys.key_pepper.get_secret_value().encode())
    return f"admin key {made} in {key_file}" + (", and stored" if stored else ", stored already")


def create_admin_key(postgres: PostgresSettings, keys: KeySettings, name: str, key_file: Path) -> None:
    """Write a new admin key to ``key_file``, which must not exist, and store its row. Raises Unprocessable."""
    from control_plane.api_keys import service as api_keys

    secret = mint_key("admin")
    try:
        _write_private(key_file, secret)
    except FileExistsError as error:
        raise Unprocessable(f"{key_file} exists. Name a new file with --key-file.") from error
    with _database(postgres) as session:
        pepper = keys.key_pepper.get_secret_value().encode()
        api_keys.store_admin_key(session, secret, pepper, name=name, actor=_OPERATOR)


def list_admin_keys(postgres: PostgresSettings) -> "list[ApiKeyView]":
    """All admin keys, including revoked ones, oldest first."""
    from control_plane.api_keys import service as api_keys

    with _database(postgres) as session:
        return api_keys.list_admin_keys(session)


def revoke_admin_key(postgres: PostgresSettings, key_id: str) -> None:
    """Revoke an admin key. Raises NotFound, and Conflict for the last one."""
    from control_plane.api_keys import service as api_keys

    with _database(postgres) as session:
        api_keys.revoke_admin_key(session, key_id, actor=_OPERATOR)


def list_base_models(postgres: PostgresSettings) -> "list[BaseModelView]":
    """All base models."""
    from control_plane.registry import base_models

    with _database(postgres) as session:
        return list(base_models.list_base_models(session, cursor=None, limit=_BASE_MODELS_MAX).data)


def set_base_model_names(postgres: PostgresSettings, base_model: str, names: list[str]) -> "BaseModelView":
    """Replace the further names of a base model. Raises NotFound, InvalidRequest or Conflict."""
    from control_plane.registry import base_models

    with _database(postgres) as session:
        return base_models.set_names(session, base_model, names, actor=_OPERATOR)


def archive_audit(postgres: PostgresSettings, before: datetime, path: Path) -> int:
    """Move rows of the audit trail older than ``before`` to the new file ``path``. Returns their number. Raises
    Unprocessable for an existing file.
    """
    from control_plane.audit import service as audit

    try:
        with _database(postgres) as session:
            return audit.archive(session, before=before, path=path, actor=_OPERATOR)
    except FileExistsError as error:
        raise Unprocessable(f"{path} exists. Name a new file with --to.") from error


def prepare_bucket(settings: "ControlSettings") -> str:
    """Create the bucket if it is missing and set its CORS rules; returns a summary. This is a separate command because
    it needs more rights than the processes that use the bucket.
    """
    from adapters.object_store.s3 import Bucket

    bucket, origins = Bucket(settings.s3, settings.store), settings.cors.control_cors_origins
    bucket.ensure(cors_origins=origins)
    return f"bucket {bucket.name} is there" + (f", open to {', '.join(origins)}" if origins else "")


def publish(settings: "ControlSettings") -> "Position":
    """Rebuild the snapshot in Redis from Postgres, in one step for gateways; returns its new position."""
    from control_plane.audit import service as audit
    from control_plane.dependencies import open_redis
    from control_plane.projections import projections
    from control_plane.publishing.outbox_relay import OutboxRelay

    signer = settings.signing.signer()
    engine = db.connect(settings.postgres)
    redis = open_redis(settings.redis.redis_url)
    try:
        with db.unit_of_work(engine) as session:
            audit.record(session, actor=_OPERATOR, action="snapshot.rebuilt", target="snapshot")
        return OutboxRelay(engine, redis, projections(settings.publishing), signer).rebuild("asked")
    finally:
        redis.close()
        engine.dispose()


@contextmanager
def _database(postgres: PostgresSettings) -> Iterator[Session]:
    """One transaction on a connection of its own."""
    engine = tenant_scope.connect(postgres)
    try:
        with tenant_scope.every_tenant(), db.unit_of_work(engine) as session:
            yield session
    finally:
        engine.dispose()


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, atomically. An existing file of the same name is kept, and raises."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as out:
            out.write(text + "\n")
            out.flush()
            os.fsync(out.fileno())
        os.link(draft, path)
    finally:
        draft.unlink()
