"""What an operator runs once: migrate the database, prepare the bucket, make the first admin key, publish anew."""

import os
import secrets
from pathlib import Path

from alembic import command
from alembic.config import Config

from adapters.object_store.s3 import Bucket
from control_plane.api_keys import service as api_keys
from control_plane.dependencies import open_redis
from control_plane.projections import projections
from control_plane.publishing.outbox_relay import Relay
from control_plane.publishing.snapshot_store import Position
from control_plane.settings import ControlSettings
from core import db
from core.api_keys import is_well_formed, mint_key
from core.errors import Unprocessable
from core.settings import KeySettings, PostgresSettings


def migrate(settings: PostgresSettings, folder: Path | None = None) -> None:
    """Bring the database to the newest migration. ``folder`` is the repository's ``migrations`` folder."""
    folder = folder or Path(__file__).resolve().parent.parent / "migrations"
    file = folder / "alembic.ini"
    if not file.exists():
        raise Unprocessable(
            f"There are no migrations at {folder}: run this from a checkout of the repository, or from an editable "
            "installation of one ('pip install --editable'), since the wheel does not carry them."
        )
    config = Config(file)
    config.attributes["settings"] = settings
    command.upgrade(config, "head")


def bootstrap(postgres: PostgresSettings, keys: KeySettings, key_file: Path) -> str:
    """Make sure that ``key_file`` holds an admin's key that is stored; returns what was done.

    The file is written before the row, so that dying between the two loses nothing: the next run stores the row.
    """
    pepper = keys.key_pepper.get_secret_value().encode()
    made = "kept"
    if key_file.exists():
        secret = key_file.read_text().strip()
        if not is_well_formed(secret) or not secret.startswith("tnr_admin_"):
            raise Unprocessable(f"{key_file} holds something else than an admin key; move it away and run this again.")
    else:
        secret = mint_key("admin")
        _write_private(key_file, secret)
        made = "minted"
    engine = db.connect(postgres)
    try:
        with db.unit_of_work(engine) as session:
            stored = api_keys.store_admin_key(session, secret, pepper)
    finally:
        engine.dispose()
    return f"admin key {made} in {key_file}" + (", and stored" if stored else ", stored already")


def prepare_bucket(settings: ControlSettings) -> str:
    """Create the bucket if it is not there and let pages of the configured origins upload to it; returns what was done.
    A step of its own, since it needs more rights than the processes that use the bucket.
    """
    bucket, origins = Bucket(settings.s3, settings.store), settings.cors.control_cors_origins
    bucket.ensure(cors_origins=origins)
    return f"bucket {bucket.name} is there" + (f", open to {', '.join(origins)}" if origins else "")


def publish(settings: ControlSettings) -> Position:
    """Replace the snapshot in Redis by what Postgres holds, in one step for gateways; returns its new position."""
    engine = db.connect(settings.postgres)
    redis = open_redis(settings.redis.redis_url)
    try:
        return Relay(engine, redis, projections(settings.publishing)).rebuild("asked")
    finally:
        redis.close()
        engine.dispose()


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all; another's file of the same name is kept."""
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
