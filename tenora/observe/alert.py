"""What an alert and a recording rule of Prometheus are here. Which there are is in the other files of this room."""

import re
from dataclasses import dataclass
from typing import Final, Literal

RUNBOOKS: Final = "RUNBOOKS.md"


@dataclass(frozen=True, kw_only=True)
class RecordingRule:
    """A series that Prometheus computes, with labels that all its samples get."""

    record: str
    expr: str
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class AlertRule:
    """An alert and its runbook: ``see``, ``why`` and ``do`` are Markdown. It fires once ``expr`` has held for ``wait``.
    ``page`` is for what users notice now, ``ticket`` for the next working day.
    """

    name: str
    title: str
    expr: str
    wait: str = "0s"
    severity: Literal["page", "ticket"] = "ticket"
    see: str
    why: str
    do: str

    @property
    def runbook_url(self) -> str:
        """Relative to ``docs/``."""
        return f"{RUNBOOKS}#{re.sub(r'[^a-z0-9 -]', '', self.title.lower()).replace(' ', '-')}"


def rises(selector: str, window: str) -> str:
    """An expression that is true when a counter with labels has grown in the window. Its first event is the first
    sample of a new series, which ``increase`` does not count.
    """
    return f"increase({selector}[{window}]) > 0 or ({selector} unless {selector} offset {window}) > 0"
