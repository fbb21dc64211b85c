"""The goals of a benchmark beside what it measured."""

from collections.abc import Iterable, Mapping
from typing import Any

import click


def judged(goals: Mapping[str, tuple[str, float]], seen: Iterable[float]) -> dict[str, dict[str, Any]]:
    """Each goal, a sign and a bound, with its measured value, in the same order."""
    return {
        goal: {"seen": round(value, 3), "goal": bound, "met": value <= bound if sign == "<=" else value >= bound}
        for (goal, (sign, bound)), value in zip(goals.items(), seen, strict=True)
    }


def report(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the goals. Raises SystemExit with status 1 where one is missed."""
    for goal, row in rows.items():
        click.echo(f"{'met   ' if row['met'] else 'MISSED'} {row['seen']:>8} ({row['goal']})  {goal}")
    if not all(row["met"] for row in rows.values()):
        raise SystemExit(1)
