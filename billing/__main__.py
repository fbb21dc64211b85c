"""``python -m billing``: the worker, repair commands for dead letters and for quotas that Redis lost, commands that
verify all invoices and reconcile, one for a rotation of the notifications' key, and two of cost attribution. What they
do is in ``billing.worker``, ``billing.usage.stream``, ``billing.quotas.rebuild``, ``billing.invoices.verification``,
``billing.reconciliation``, ``billing.notifications.endpoints`` and ``billing.costs``.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from core.quick_imports import quick_imports

with quick_imports():
    from billing import worker
    from billing.costs import cost_functions
    from billing.costs.hours import allocate_due
    from billing.costs.settings import CostSettings
    from billing.costs.step_model import described
    from billing.invoices import verification
    from billing.notifications import endpoints
    from billing.notifications.settings import NotificationSettings
    from billing.notifications.signing_secrets import SecretBox
    from billing.quotas import rebuild
    from billing.reconciliation import runs
    from billing.reconciliation.engine_usage import store_reports
    from billing.settings import BillingSettings
    from billing.usage.stream import UsageStream
    from core import db
    from core.audit_rows import record_operator_action
    from core.errors import AppError, InvalidSettings
    from core.settings import PostgresSettings, RedisSettings, exit_on_invalid_settings
    from core.unreachable_stores import named_when_unreachable

_Run = Callable[[argparse.Namespace], None]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns 1, with a message on standard error, when the command fails for an expected reason."""
    arguments = _parser().parse_args(argv)
    if arguments.run is _worker:  # its log has the tracebacks
        worker.run()
        return 0
    try:
        with named_when_unreachable():
            arguments.run(arguments)
    except AppError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m billing",
        description="Runs the billing worker, or an operator's command on the ledger, the invoices and the costs.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add(commands, "worker", _worker, "Record usage in the ledger, make invoices and send alerts, until SIGTERM.")
    redrive = _add(commands, "redrive", _redrive, "Move dead letters back to the usage stream, oldest first.")
    redrive.add_argument(
        "--count", type=_positive, default=1_000, help="Move at most this many dead letters (default: %(default)s)."
    )
    text = "Rebuild the month's tokens and the spending in Redis from the ledger."
    rebuilding = _add(commands, "rebuild-quotas", _rebuild, text)
    rebuilding.add_argument("--tenant", metavar="ID", help="Rebuild only this tenant (default: all tenants).")
    _add(commands, "reseal-secrets", _reseal, "Encrypt webhooks' signing secrets again, with the current key.")
    _add(commands, "fit-costs", _fit_costs, "Fit the cost function of each kind of replica to its newest windows.")
    _add(
        commands, "allocate-costs", _allocate_costs, "Share out the cost of all hours that are due, as the worker does."
    )
    _add(commands, "verify", _verify, "Verify the numbers, hashes and states of all invoices and credit notes.")
    text = "Compare engines, ledger and invoices now. Exit status 1: at least one difference is not explained."
    reconcile = _add(commands, "reconcile", _reconcile, text)
    reconcile.add_argument("--full", action="store_true", help="Read everything, not only what has changed.")
    return parser


def _add(commands: Any, name: str, run: _Run, text: str) -> argparse.ArgumentParser:
    """``commands`` is what ``add_subparsers`` returns; argparse has no public name for its type."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    return command


def _worker(_: argparse.Namespace) -> None:
    worker.run()


def _verify(_: argparse.Namespace) -> None:
    engine = db.connect(PostgresSettings()).execution_options(isolation_level="REPEATABLE READ")
    with db.unit_of_work(engine) as session:
        verified = verification.verify(session)
    for finding in verified.findings:
        sys.stdout.write(f"{finding}\n")
    if verified.findings:
        sys.exit(f"{len(verified.findings)} of {verified.documents} documents cannot be trusted")
    if verified.documents == 0:
        sys.stdout.write("there are no invoices and no credit notes yet\n")
        return
    sys.stdout.write(f"{verified.documents} documents verified; the last one's hash is {verified.head_sha256}\n")


def _redrive(arguments: argparse.Namespace) -> None:
    settings = BillingSettings()
    with db.unit_of_work(db.connect(PostgresSettings())) as session:
        record_operator_action(session, action="dead_letters.redriven", target="usage", count_max=arguments.count)
    with worker.connect_redis(RedisSettings(), settings) as redis:
        moved = UsageStream(redis, settings.billing_consumer).redrive(count=arguments.count)
    sys.stdout.write(f"{moved} dead letters moved back to the stream\n")


def _reseal(_: argparse.Namespace) -> None:
    engine = db.connect(PostgresSettings())
    box = SecretBox(NotificationSettings().notification_keys)
    if not box.usable:
        raise InvalidSettings("TENORA_NOTIFICATIONS_KEY is not set: there are no secrets to encrypt without it.")
    with db.unit_of_work(engine) as session:
        record_operator_action(session, action="notification_secrets.resealed", target="all tenants")
    count = endpoints.reseal(engine, box)
    sys.stdout.write(f"{count} webhooks encrypted with the current key\n")


def _reconcile(arguments: argparse.Namespace) -> None:
    settings = BillingSettings()
    engine = db.connect(PostgresSettings())
    with worker.connect_redis(RedisSettings(), settings) as redis:
        store_reports(engine, redis)
    found = runs.run(engine, runs.run_limits(settings), full=arguments.full)
    sys.stdout.write(runs.described(found))
    sys.stdout.write(f"hours that changed in the last {settings.billing_reconcile_settle_s} s wait for a later run\n")
    if found.differing:
        sys.exit(1)


def _allocate_costs(_: argparse.Namespace) -> None:
    run = allocate_due(db.connect(PostgresSettings()), CostSettings())
    sys.stdout.write(f"{run.hours} hours of replicas shared out\n")
    if run.without_rate:
        replicas = ", ".join(sorted(run.without_rate))
        sys.exit(f"replicas {replicas} have no rate; add one with POST /api/v1/admin/costs/rates")


def _fit_costs(_: argparse.Namespace) -> None:
    engine, settings, failed = db.connect(PostgresSettings()), CostSettings(), []
    with db.unit_of_work(engine) as session:
        found = cost_functions.kinds(session)
    if not found:
        sys.exit("no replica has reported steps; run `python -m benchmarks.calibration` or wait for traffic")
    for kind in found:
        name = f"{kind.base_model} rank {kind.rank_max}, {kind.engine} {kind.device}"
        try:
            with db.unit_of_work(engine) as session:
                fitted = cost_functions.fit_kind(session, kind, windows_max=settings.cost_fit_windows_max)
        except AppError as error:
            failed.append(name)
            sys.stdout.write(f"{name}: {error.message}\n")
            continue
        sys.stdout.write(f"{name}: {fitted.id}\n{described(fitted.weights, fitted.quality)}\n")
    if len(failed) == len(found):
        sys.exit(1)


def _rebuild(arguments: argparse.Namespace) -> None:
    tenant_id: str | None = arguments.tenant
    engine = db.connect(PostgresSettings())
    with db.unit_of_work(engine) as session:
        record_operator_action(session, action="quotas.rebuilt", target=tenant_id or "all tenants")
    with worker.connect_redis(RedisSettings(), BillingSettings()) as redis:
        rebuilt = rebuild.rebuild(engine, redis, tenant_id)
    sys.stdout.write(
        f"{rebuilt.tenants} tenants and {rebuilt.limited_keys} keys with limits: {rebuilt.corrected} corrected\n"
    )


if __name__ == "__main__":
    with exit_on_invalid_settings():
        sys.exit(main())
