"""Says how far a long measurement is, and when it will end."""

import time
from typing import Final

import click

_EVERY_S: Final = 10


class Progress:
    """One phase of so many steps. It says something every ten seconds, and at its end."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._begun = self._said = time.monotonic()

    def done(self, steps: int) -> None:
        """``steps`` of all are done."""
        now = time.monotonic()
        if steps < self._total and now < self._said + _EVERY_S:
            return
        self._said, took = now, now - self._begun
        left = f", about {took * (self._total - steps) / max(1, steps):.0f} s left" if steps < self._total else ""
        click.echo(f"  {self._what}: {steps:,} of {self._total:,} in {took:.0f} s{left}", err=True)
