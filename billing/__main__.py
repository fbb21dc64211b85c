"""``python -m billing``: the worker, and the command that gives dead letters another chance."""

import argparse
import sys

from billing import worker
from billing.settings import BillingSettings
from billing.stream import UsageStream
from core.settings import RedisSettings


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def main() -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m billing", description="Tenora's billing: usage into the ledger.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("worker", help="meter the usage stream into the ledger until SIGTERM")
    redrive = commands.add_parser("redrive", help="move dead letters back to the usage stream, oldest first")
    redrive.add_argument("--count", type=_positive, default=1_000, help="at most this many (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.command == "worker":
        worker.run()
    else:
        settings = BillingSettings()
        with worker.connect_redis(RedisSettings(), settings) as redis:
            moved = UsageStream(redis, settings.billing_consumer).put_back(count=arguments.count)
        sys.stdout.write(f"{moved} dead letters put back\n")


if __name__ == "__main__":
    main()
