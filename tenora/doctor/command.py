"""`tenora doctor`: compares Redis, Postgres and every engine twice, and reports what differs both times.

A difference in one check only is a change in progress. The command changes nothing.
"""

import json
import os
import time
from dataclasses import asdict
from typing import Final

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


def examine(settings: StackSettings, *, pause_s: float, as_json: bool) -> int:
    """Print the report. Returns 0 when nothing differs both times, 1 when something does, 2 when the check failed."""
    if not is_up(settings) and not os.environ.keys() >= OTHER_STACK:
        others = ", ".join(sorted(OTHER_STACK))
        text = f"Nothing runs under {settings.root}. Start it with: tenora up --detach, or set {others}."
        Console(stderr=True).print(text, markup=False, soft_wrap=True)
        return 2
    try:
        with sources(settings) as at:
            seen = look(at)
            found = findings(seen)
            if found:
                time.sleep(pause_s)
                seen = look(at)
                found = lasting(found, findings(seen))
    except (RedisError, SQLAlchemyError, ValueError) as error:
        Console(stderr=True).print(f"cannot check: {error}", markup=False)
        return 2
    if as_json:
        print(json.dumps(report(seen, found), indent=2))
    else:
        _print(seen, found)
    return 1 if found else 0


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


def _print(seen: Look, found: list[Finding]) -> None:
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
