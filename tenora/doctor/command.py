"""`tenora doctor`: looks twice at what is published, at Postgres and at every engine, and tells what differs twice.

What differs once is in motion; what stays is wrong. It changes nothing.
"""

import json
import time
from dataclasses import asdict

from redis.exceptions import RedisError
from rich.console import Console
from rich.table import Table
from sqlalchemy.exc import SQLAlchemyError

from tenora.doctor.collect import look, sources
from tenora.doctor.compare import Finding, Look, findings
from tenora.settings import StackSettings


def examine(settings: StackSettings, *, pause_s: float, as_json: bool) -> int:
    """Print the report; 0 when nothing differs both times, 1 when something does, 2 when it could not be looked at."""
    try:
        with sources(settings) as at:
            seen = look(at)
            found = findings(seen)
            if found:
                time.sleep(pause_s)
                seen = look(at)
                found = lasting(found, findings(seen))
    except (RedisError, SQLAlchemyError, ValueError) as error:
        Console(stderr=True).print(f"cannot look: {error}", markup=False)
        return 2
    if as_json:
        print(json.dumps(report(seen, found), indent=2))
    else:
        _print(seen, found)
    return 1 if found else 0


def lasting(first: list[Finding], second: list[Finding]) -> list[Finding]:
    """What was found both times, as the second look has it."""
    before = set(first)
    return [finding for finding in second if finding in before]


def report(seen: Look, found: list[Finding]) -> dict[str, object]:
    """What `--json` prints."""
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
        console.print("what is published, what engines hold and what Postgres says agree")
        return
    table = Table("where", "difference", "fix", show_lines=True)
    for finding in found:
        table.add_row(finding.where, finding.what + (f" ({finding.detail})" if finding.detail else ""), finding.fix)
    console.print(table)
