"""The rules for ``rank_pattern`` and ``alpha_pattern``, which give single modules another rank or alpha.

PEFT matches their keys as regular expressions, which can run for hours; no pattern is ever run here. The tensors' own
shapes decide the ranks. An alpha cannot be seen in a tensor, so keys of ``alpha_pattern`` must be literal names.
"""

import re
from typing import Any, Final

import msgspec

from adapters.manifest import CONFIG_FILE
from adapters.report import ReportBuilder
from adapters.validation.target_rules import is_unset
from adapters.validation.tensor_names import without_wrappers
from core.strict_json import shorten

_ENTRIES_MAX: Final = 4096
_KEY_CHARS_MAX: Final = 512
_LITERAL: Final = re.compile(r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*")


class AlphaRule(msgspec.Struct, frozen=True, kw_only=True):
    """The alpha of the modules of this name: a full name if ``anchored``, otherwise any suffix that begins at a dot."""

    name: str
    anchored: bool
    alpha: int | float

    def matches(self, module: str) -> bool:
        """Whether PEFT would match the module."""
        return module == self.name or (not self.anchored and module.endswith("." + self.name))


def read_rank_pattern(config: dict[str, object], report: ReportBuilder) -> frozenset[int]:
    """The ranks that single modules may have beside ``r``."""
    entries = _read_entries(config, "rank_pattern", report)
    for key, value in entries.items():
        if type(value) is not int or value < 1:
            text = f"rank_pattern gives {shorten(key)} the rank {shorten(value)}; write a whole number of at least 1"
            report.refuse("config_invalid", text, file=CONFIG_FILE, where="rank_pattern")
            return frozenset()
    return frozenset(value for value in entries.values() if isinstance(value, int))


def read_alpha_pattern(
    config: dict[str, object], alpha_min: float, alpha_max: float, report: ReportBuilder
) -> tuple[AlphaRule, ...]:
    """The rules in PEFT's order: the first one that matches a module decides."""
    rules = []
    for key, value in _read_entries(config, "alpha_pattern", report).items():
        name = without_wrappers(key.removeprefix("^").removesuffix("$").replace("\\.", "."))
        if not _LITERAL.fullmatch(name):
            text = (
                f"alpha_pattern has the pattern {shorten(key)}; patterns are not read: "
                'write literal module names, such as "layers.0.self_attn.q_proj"'
            )
            report.refuse("config_invalid", text, file=CONFIG_FILE, where="alpha_pattern")
            return ()
        if isinstance(value, bool) or not isinstance(value, int | float) or not alpha_min <= value <= alpha_max:
            text = f"alpha_pattern gives {shorten(key)} the alpha {shorten(value)}; write a number up to {alpha_max:g}"
            report.refuse("config_invalid", text, file=CONFIG_FILE, where="alpha_pattern")
            return ()
        rules.append(AlphaRule(name=name, anchored=key.startswith("^"), alpha=value))
    return tuple(rules)


def _read_entries(config: dict[str, object], field: str, report: ReportBuilder) -> dict[str, Any]:  # JSON values
    value = config.get(field)
    if is_unset(value):
        return {}
    if isinstance(value, dict) and len(value) <= _ENTRIES_MAX and all(len(key) <= _KEY_CHARS_MAX for key in value):
        return value
    text = f"{field} is {shorten(value)}; write an object of at most {_ENTRIES_MAX} module names and numbers"
    report.refuse("config_invalid", text, file=CONFIG_FILE, where=field)
    return {}
