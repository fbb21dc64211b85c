"""``python -m billing``: the worker, repair commands for dead letters and for quotas that Redis lost, commands that
verify all invoices and reconcile, one for a rotation of the notifications' key, and two of cost attribution. What they
do is in ``billing.worker``, ``billing.stream``, ``billing.quota_rebuild``, ``billing.invoices.verification``,
``billing.reconciliation``, ``billing.notifications.reseal`` and ``billing.costs``.
"""

import argparse
import sys

from billing import quota_rebuild, worker
from billing.costs import cost_functions
from billing.costs.hours import allocate_due
from billing.costs.settings import CostSettings
from billing.costs.step_model import described
from billing.invoices import verification
from billing.notifications import reseal
from billing.notifications.settings import NotificationSettings
from billing.notifications.signing_secrets import SecretBox
from billing.reconciliation import runs
from billing.reconciliation.engine_usage import store_reports
from billing.settings import BillingSettings
from billing.stream import UsageStream
from core import db
from core.audit_rows import record_operator_action
from core.errors import AppError
from core.settings import PostgresSettings, RedisSettings


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def main() -> None:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m billing", description="Tenora's billing: records usage events in the ledger."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("worker", help="record the usage stream in the ledger until SIGTERM")
    redrive = commands.add_parser("redrive", help="move dead letters back to the usage stream, oldest first")
    redrive.add_argument(
        "--count", type=_positive, default=1_000, help="move at most this many dead letters (default: %(default)s)"
    )
    rebuild = commands.add_parser(
        "rebuild-quotas", help="rebuild the month's tokens and the spending in Redis from the ledger"
    )
    rebuild.add_argument("--tenant", metavar="ID", help="rebuild only this tenant (default: all tenants)")
    commands.add_parser("reseal-secrets", help="encrypt webhooks' signing secrets again, with the current key")
    commands.add_parser("fit-costs", help="fit the cost function of each kind of replica to its newest windows")
    commands.add_parser("allocate-costs", help="share out the cost of all hours that are due, as the worker does")
    commands.add_parser("verify", help="verify the numbers, hashes and states of all invoices and credit notes")
    reconcile = commands.add_parser(
        "reconcile", help="compare engines, ledger and invoices now; exit status 1 when something is not explained"
    )
    reconcile.add_argument("--full", action="store_true", help="read everything, not only what has changed")
    arguments = parser.parse_args()
    if arguments.command == "worker":
        worker.run()
    elif arguments.command == "rebuild-quotas":
        _rebuild(arguments.tenant)
    elif arguments.command == "reseal-secrets":
        _reseal()
    elif arguments.command == "reconcile":
        _reconcile(full=arguments.full)
    elif arguments.command == "fit-costs":
        _fit_costs()
    elif arguments.command == "verify":
        _verify()
    elif arguments.command == "allocate-costs":
        _allocate_costs()
    else:
        moved = _redrive(arguments.count)
        sys.stdout.write(f"{moved} dead letters moved back to the stream\n")


def _verify() -> None:
    engine = db.connect(PostgresSettings()).execution_options(isolation_level="REPEATABLE READ")
    with db.unit_of_work(engine) as session:
        verified = verification.verify(session)
    for finding in verified.findings:
        sys.stdout.write(f"{finding}\n")
    if verified.findings:
        sys.exit(f"{len(verified.findings)} of {verified.documents} documents cannot be trusted")
    sys.stdout.write(f"{verified.documents} documents verified; the last one's hash is {verified.head_sha256}\n")


def _redrive(count: int) -> int:
    settings = BillingSettings()
    with db.unit_of_work(db.connect(PostgresSettings())) as session:
        record_operator_action(session, action="dead_letters.redriven", target="usage", count_max=count)
    with worker.connect_redis(RedisSettings(), settings) as redis:
        return UsageStream(redis, settings.billing_consumer).redrive(count=count)


def _reseal() -> None:
    engine = db.connect(PostgresSettings())
    box = SecretBox(NotificationSettings().notification_keys)
    if not box.usable:
        sys.exit("TENORA_NOTIFICATIONS_KEY is not set")
    with db.unit_of_work(engine) as session:
        record_operator_action(session, action="notification_secrets.resealed", target="all tenants")
    try:
        count = reseal.reseal(engine, box)
    except AppError as error:
        sys.exit(error.message)
    sys.stdout.write(f"{count} webhooks encrypted with the current key\n")


def _reconcile(*, full: bool) -> None:
    """Print the result. What changed within the last minutes is judged by a later run."""
    settings = BillingSettings()
    engine = db.connect(PostgresSettings())
    with worker.connect_redis(RedisSettings(), settings) as redis:
        store_reports(engine, redis)
    found = runs.run(engine, runs.run_limits(settings), full=full)
    sys.stdout.write(runs.described(found))
    if found.differing:
        sys.exit(1)


def _allocate_costs() -> None:
    run = allocate_due(db.connect(PostgresSettings()), CostSettings())
    sys.stdout.write(f"{run.hours} hours of replicas shared out\n")
    if run.without_rate:
        replicas = ", ".join(sorted(run.without_rate))
        sys.exit(f"the pools of {replicas} have no rate; add one with POST /api/v1/admin/costs/rates")


def _fit_costs() -> None:
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


def _rebuild(tenant_id: str | None) -> None:
    engine = db.connect(PostgresSettings())
    with db.unit_of_work(engine) as session:
        record_operator_action(session, action="quotas.rebuilt", target=tenant_id or "all tenants")
    with worker.connect_redis(RedisSettings(), BillingSettings()) as redis:
        try:
            rebuilt = quota_rebuild.rebuild(engine, redis, tenant_id)
        except AppError as error:
            sys.exit(error.message)
    sys.stdout.write(
        f"{rebuilt.tenants} tenants and {rebuilt.limited_keys} keys with limits: {rebuilt.corrected} corrected\n"
    )


if __name__ == "__main__":
    main()
