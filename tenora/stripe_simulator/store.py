"""The simulator's state in one SQLite file: objects, kept answers, deliveries and its own settings.

One process writes; a second one on the folder is refused. A request's changes are committed together or not at all.
"""

import fcntl
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS objects (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, body TEXT NOT NULL,
    hidden TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS objects_by_kind ON objects (kind, number);
CREATE INDEX IF NOT EXISTS objects_by_customer ON objects (kind, json_extract(body, '$.customer'));
CREATE INDEX IF NOT EXISTS objects_by_payment ON objects (kind, json_extract(body, '$.payment_intent'));
CREATE INDEX IF NOT EXISTS objects_by_status ON objects (kind, json_extract(body, '$.status'));
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, status INTEGER NOT NULL, body TEXT NOT NULL,
    begun INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS deliveries (
    number INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL, due REAL NOT NULL, attempts INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class AlreadyRunning(Exception):
    """Another simulator uses this folder."""


class SimulatorStore:
    """All state of one simulator. Used from one thread."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._lock = (home / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise AlreadyRunning(
                f"another Stripe simulator runs on {home}; stop it or choose another --home"
            ) from error
        self.sql = sqlite3.connect(home / "state.sqlite3", isolation_level=None, check_same_thread=False)
        self.sql.execute("PRAGMA journal_mode = WAL")
        self.sql.execute("PRAGMA synchronous = NORMAL")  # survives a killed process; a power cut may cost seconds
        self.sql.executescript(_SCHEMA)

    def close(self) -> None:
        self.sql.close()
        self._lock.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what happens inside, or nothing of it."""
        self.sql.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.sql.execute("ROLLBACK")
            raise
        self.sql.execute("COMMIT")

    # Objects. ``hidden`` holds what Stripe knows and does not show, such as what a card will do.

    def add(self, body: Mapping[str, Any], hidden: Mapping[str, Any]) -> None:
        self.sql.execute(
            "INSERT INTO objects (id, kind, body, hidden) VALUES (?, ?, ?, ?)",
            (body["id"], body["object"], json.dumps(body), json.dumps(hidden)),
        )

    def save(self, body: Mapping[str, Any]) -> None:
        self.sql.execute("UPDATE objects SET body = ? WHERE id = ?", (json.dumps(body), body["id"]))

    def load(self, object_id: str) -> dict[str, Any] | None:
        row = self.sql.execute("SELECT body FROM objects WHERE id = ?", (object_id,)).fetchone()
        return None if row is None else json.loads(row[0])

    def hidden(self, object_id: str) -> dict[str, Any]:
        row = self.sql.execute("SELECT hidden FROM objects WHERE id = ?", (object_id,)).fetchone()
        found: dict[str, Any] = json.loads(row[0])
        return found

    def hide(self, object_id: str, **values: Any) -> None:
        changed = {**self.hidden(object_id), **values}
        self.sql.execute("UPDATE objects SET hidden = ? WHERE id = ?", (json.dumps(changed), object_id))

    def select(self, kind: str, **equal: Any) -> Iterator[dict[str, Any]]:
        """Objects of a kind whose fields have these values, the newest first, without deleted ones. A reader that
        changes some meanwhile makes a list of them first.
        """
        where = "".join(f" AND json_extract(body, '$.{name}') = ?" for name in equal)
        rows = self.sql.execute(
            f"SELECT body FROM objects WHERE kind = ?{where} ORDER BY number DESC",  # noqa: S608 - names are ours
            (kind, *equal.values()),
        )
        return (body for row in rows if not (body := json.loads(row[0])).get("deleted"))

    # The simulator's own settings.

    def setting(self, name: str, default: Any) -> Any:
        row = self.sql.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return default if row is None else json.loads(row[0])

    def set(self, name: str, value: Any) -> None:
        encoded = msgspec.json.encode(value).decode()
        self.sql.execute("REPLACE INTO settings (name, value) VALUES (?, ?)", (name, encoded))
