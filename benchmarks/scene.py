"""What the demonstrations print: what happens, how long it took, and whether a promise holds."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import click


class Scene:
    """Prints what happens, with the seconds since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        click.echo(f"{self.seconds:6.1f} s  {text}")

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Say what begins, and how long it took."""
        self.say(f"{text} …")
        began = time.monotonic()
        yield
        self.say(f"  done in {time.monotonic() - began:.1f} s")


def check(is_true: bool, text: str) -> None:
    """Print a promise with a mark, and end the demonstration where it is broken."""
    click.echo(f"          {'✓' if is_true else '✗'} {text}")
    if not is_true:
        raise click.ClickException(text)
