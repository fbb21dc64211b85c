"""`tenora doctor`: compares Redis, Postgres and every engine twice, and reports what differs both times.

A difference in one check only is a change in progress. The command changes nothing.
"""

import os
import time
from dataclasses import asdict
from typing import Final

import click
from redis.exceptions import RedisError
from rich.console import Console
from rich.table import Table
from sqlalchemy.exc import SQLAlchemyError

from tenora.doctor.collect import look, sources
from tenora.doctor.compare import Finding, Look, findings
from tenora.settings import StackSettings
from tenora.stack.daemon import is_up

OTHER_STACK: Final = frozenset({"TENORA_REDIS_URL", "TENORA_POSTGRES_DSN", "TENORA_ENGINE_KEY"})
"""The variables that name a stack which does not run under ``TENORA_HOME``."""


class CheckFailed(click.ClickException):
    """The check could not be made."""

    exit_code = 2


def examine(settings: StackSettings, *, pause_s: float) -> tuple[Look, list[Finding]]:
    """What was seen, and what differs both times. Raises CheckFailed."""
    if not is_up(settings) and not os.environ.keys() >= OTHER_STACK:
        others = ", ".join(sorted(OTHER_STACK))
        raise CheckFailed(f"Nothing runs under {settings.root}. Start it with: tenora up --detach, or set {others}.")
    try:
        with sources(settings) as at:
            seen = look(at)
            found = findings(seen)
            if found:
                time.sleep(pause_s)
                seen = look(at)
                found = lasting(found, findings(seen))
    except (RedisError, SQLAlchemyError) as error:
        raise CheckFailed(f"cannot check: {error}") from error
    return seen, found


def lasting(first: list[Finding], second: list[Finding]) -> list[Finding]:
    """The findings of both checks, as the second check has them."""
    before = set(first)
    return [finding for finding in second if finding in before]


def report(seen: Look, found: list[Finding]) -> dict[str, object]:
    """The report that `--json` prints."""
    return {
        "healthy": not found,
        "looked_at": {
            "replicas": sorted(replica.status.id for replica in seen.replicas),
            "gateways": sorted(gateway.id for gateway in seen.gateways),
            "adapters": len(seen.routes),
            "revocations": len(seen.revocations),
            "aliases": len(seen.aliases),
        },
        "findings": [asdict(finding) for finding in found],
    }


def print_report(seen: Look, found: list[Finding]) -> None:
    """Print the report for people."""
    console = Console()
    console.print(
        f"{len(seen.replicas)} replicas, {len(seen.gateways)} gateways, {len(seen.routes)} adapters, "
        f"{len(seen.revocations)} revocations, {len(seen.aliases)} alias targets"
    )
    if not found:
        console.print("Redis, the replicas and Postgres agree")
        return
    table = Table("where", "difference", "fix", show_lines=True)
    for finding in found:
        table.add_row(finding.where, finding.what + (f" ({finding.detail})" if finding.detail else ""), finding.fix)
    console.print(table)
