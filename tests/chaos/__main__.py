"""``python -m tests.chaos`` runs every row of the fault matrix and every kill, shows progress, and writes a report.

It runs unattended. After a failure it records the problem and continues. The status is 1 if a promise was broken.
"""

import argparse
import contextlib
import secrets
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane import operations
from tenora.stack import embedded_servers
from tenora.stack.program import free_port
from tests.chaos import batches, control, fixture, kills, ledger_check, matrix, report
from tests.chaos.batches import BatchResult
from tests.chaos.control import ControlResult
from tests.chaos.platform import Platform, platform
from tests.chaos.report import Closing, KillResult, RowResult
from tests.chaos.verdict import quiet
from tests.conftest import create_database
from tests.fixtures import processes
from tests.fixtures.least_privilege import POSTGRES_ROLES

WRONG = (Exception, pytest.fail.Exception)  # pytest.fail's exception does not derive from Exception
ILL_MAX = 3  # consecutive kills with an unhealthy platform, after which the run skips the victim


def main() -> int:
    """Run the selected rows and kills, and write the report."""
    given = _arguments()
    began = time.monotonic()
    rows = [row for row in matrix.ROWS if given.rows is None or row.id in given.rows]
    with _full_platform() as made:
        row_results = list(_rows(made, rows))
        kill_results = list(_kills(made, [kills.VICTIMS[name] for name in given.victims], given.seed, given.instants))
        closing = _close(made)
        controlled, batched = _control(made, given)
    took_s = time.monotonic() - began
    text = report.markdown(row_results, kill_results, closing, controlled, batched, seed=given.seed, took_s=took_s)
    if given.out is None:
        sys.stdout.write(text)
    else:
        given.out.write_text(text)
    broken = [one.row.id for one in row_results if one.failed]
    broken += [one.victim.name for one in (*kill_results, *controlled, *batched) if one.problems]
    broken += ["the ledger"] if closing.problems else []
    _print(f"{took_s / 60:.1f} minutes; " + (f"BROKEN: {', '.join(broken)}" if broken else "every promise was kept"))
    return int(bool(broken))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--instants", type=int, default=40, help="kills of each process (default: %(default)s)")
    parser.add_argument("--victims", nargs="*", default=list(kills.VICTIMS), choices=kills.VICTIMS)
    parser.add_argument("--control", nargs="*", default=list(control.VICTIMS), choices=control.VICTIMS)
    parser.add_argument("--batches", nargs="*", default=list(batches.VICTIMS), choices=batches.VICTIMS)
    parser.add_argument("--rows", nargs="*", help="rows of the matrix by id (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first instant (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="where to write the report")
    return parser.parse_args()


@contextlib.contextmanager
def _full_platform() -> Iterator[Platform]:
    """A platform with its own Postgres, which the run can kill like the other processes."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        home = Path(folder)
        password = secrets.token_hex(8)
        server = embedded_servers.postgres(
            home / "pg", home, port=free_port(), password=password, roles=POSTGRES_ROLES, options=("-c", "fsync=off")
        )
        with processes.running(server.program) as postgres:
            database = create_database(server.url, "chaos")
            operations.migrate(database)
            (home / "platform").mkdir()
            with platform(home / "platform", database) as made:
                made.programs["postgres"] = server.program
                made.running = {"postgres": postgres, **made.running}  # started first, stopped last
                fixture.prepare(made)
                yield made


def _rows(made: Platform, rows: list[matrix.Row]) -> Iterator[RowResult]:
    for row in rows:
        began = time.monotonic()
        try:
            result = RowResult(row, matrix.run(made, row), failed=False)
        except WRONG as error:
            result = RowResult(row, _summary(error), failed=True)
        _print(f"{row.id}: {'FAILED: ' if result.failed else ''}{result.summary} ({time.monotonic() - began:.0f} s)")
        yield result


def _kills(made: Platform, victims: list[kills.Victim], seed: int, instants: int) -> Iterator[KillResult]:
    for victim in victims:
        total, ill, count = KillResult(victim), 0, victim.instants(instants)
        for number in range(seed, seed + count):
            kill, began = kills.Kill(victim, number), time.monotonic()
            try:
                fixture.heal(made)
                total.add(kill, *kills.run(made, kill, made.tenant()))
                ill = 0
            except WRONG as error:
                total.problems.append(f"seed {number} at {kill.instant_s:.2f} s: {_summary(error)}")
                ill += 1
            _print(f"{victim.name} {number + 1 - seed}/{count}: {total.line()} ({time.monotonic() - began:.0f} s)")
            if ill >= ILL_MAX:
                total.problems.append(f"given up after {number + 1 - seed} kills")
                break
        yield total


def _control(made: Platform, given: argparse.Namespace) -> tuple[list[ControlResult], list[BatchResult]]:
    """Run on another stack. The first stack is idle meanwhile."""
    controlled = [ControlResult(control.VICTIMS[name]) for name in given.control]
    batched = [BatchResult(batches.VICTIMS[name]) for name in given.batches]
    if not controlled and not batched:
        return [], []
    try:
        with control.plane(made.folder / "control", made.engine.url.render_as_string(hide_password=False)) as plane:
            for total in controlled:
                count = total.victim.instants(given.instants)
                for number in range(given.seed, given.seed + count):
                    control.run(plane, kills.Kill(total.victim, number), total)
                    _print(f"{total.victim.name} {number + 1 - given.seed}/{count}: {total.line()}")
            for one in batched:
                with batches.batch_process(plane):
                    for _ in batches.run(plane, one, seed=given.seed, kills=given.instants):
                        _print(f"{one.victim.name}: {one.line()}")
    except WRONG as error:
        (batched or controlled)[-1].problems.append(_summary(error))
    return controlled, batched


def _close(made: Platform) -> Closing:
    """Check the ledger of all tenants after all faults."""
    try:
        fixture.heal(made)
        quiet(made)
        ledger = ledger_check.recorded(made)
        problems = ledger_check.problems(made, ledger, made.tenants.values())
    except WRONG as error:
        return Closing(len(made.tenants), 0, [_summary(error)])
    _print(f"the ledger: {len(made.tenants)} tenants, {len(ledger)} records, {len(problems)} problems")
    return Closing(len(made.tenants), len(ledger), problems)


def _summary(error: BaseException) -> str:
    """The first line of an error. The traceback goes to the terminal."""
    traceback.print_exception(error)
    return (str(error).strip() or repr(error)).splitlines()[0][:300]


def _print(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
