"""``python -m tests.chaos``: every row of the fault matrix and every kill, with progress, into a report."""

import argparse
import secrets
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from alembic import command

from tenora import servers
from tenora.program import free_port
from tests.chaos import kills, matrix, report, standing
from tests.chaos.platform import Platform, platform
from tests.chaos.report import KillResult, RowResult
from tests.conftest import alembic_config, create_database
from tests.fixtures import processes


def main() -> int:
    """Run what is asked for; 1 where something that is promised was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--instants", type=int, default=40, help="kills of each process (default: %(default)s)")
    parser.add_argument("--victims", nargs="*", default=list(kills.VICTIMS), choices=kills.VICTIMS)
    parser.add_argument("--rows", nargs="*", help="rows of the matrix by id (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the first instant (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="where to write the report")
    given = parser.parse_args()
    rows = [row for row in matrix.ROWS if given.rows is None or row.id in given.rows]
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        home = Path(folder)
        password = secrets.token_hex(8)
        server = servers.postgres(home / "pg", home, port=free_port(), password=password, options=("-c", "fsync=off"))
        with processes.running(server.program):
            database = create_database(server.url, "chaos")
            command.upgrade(alembic_config(database), "head")
            (home / "platform").mkdir()
            with platform(home / "platform", database) as made:
                standing.furnish(made)
                row_results = list(_rows(made, rows))
                kill_results = list(_kills(made, given.victims, given.seed, given.instants))
    text = report.markdown(row_results, kill_results, instants=given.instants, seed=given.seed)
    if given.out is None:
        sys.stdout.write(text)
    else:
        given.out.write_text(text)
    return int(any(one.failed for one in row_results) or any(one.problems for one in kill_results))


def _rows(made: Platform, rows: list[matrix.Row]) -> Iterator[RowResult]:
    for row in rows:
        began = time.monotonic()
        try:
            result = RowResult(row, matrix.run(made, row), failed=False)
        except BaseException as error:  # pytest's failures are none of Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            traceback.print_exc()
            said = (str(error).strip() or repr(error)).splitlines()[0][:300]
            result = RowResult(row, said, failed=True)
        _say(f"{row.id}: {'FAILED: ' if result.failed else ''}{result.said} ({time.monotonic() - began:.0f} s)")
        yield result


def _kills(made: Platform, victims: list[str], seed: int, instants: int) -> Iterator[KillResult]:
    for victim in victims:
        total = KillResult(victim)
        for number in range(seed, seed + instants):
            kill = kills.Kill(victim, number)
            try:
                standing.heal(made)
                total.add(kill, kills.run(made, kill, made.tenant()))
            except BaseException as error:  # pytest's failures are none of Exception
                if isinstance(error, KeyboardInterrupt):
                    raise
                traceback.print_exc()
                total.problems.append(f"seed {number} at {kill.instant_s:.2f} s: {error!r}"[:300])
            _say(f"{victim} {number + 1 - seed}/{instants}: {total.line()}")
        yield total


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
