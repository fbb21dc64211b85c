"""The report's table of settings that differ from their defaults, with the rows that depend on them."""

from collections.abc import Collection

from billing.settings import BillingSettings
from data_plane.gateway.settings import GatewaySettings
from tests.chaos import fixture, matrix, platform

_FIELDS = {**GatewaySettings.model_fields, **BillingSettings.model_fields}


def table() -> list[str]:
    """Lines of Markdown: setting, default, value here, rows."""
    here = platform.BRISK | {f"billing_{name.lower()}": value for name, value in platform.BILLING.items()}
    lines = [
        _line(name, value, [row.id for row in matrix.ROWS if name in row.depends_on]) for name, value in here.items()
    ]
    for gateway, settings in fixture.NEAR.items():
        lines += [_line(name, value, [f"all at {gateway}"]) for name, value in settings.items()]
    for row in matrix.ROWS:
        lines += [_line(name, value, [f"{row.id} alone"]) for name, value in row.own.items()]
    return lines


def _line(name: str, value: object, rows: Collection[str]) -> str:
    return f"| `TENORA_{name.upper()}` | {_FIELDS[name].default} | {value} | {', '.join(rows)} |\n"
