"""Which modules of the base model a config claims to adapt, by PEFT's own rule but only for literal names.

A target is a module's full name, or a suffix of it that begins at a dot. PEFT matches a string as a regular expression,
which can run for hours. No pattern is run here: where ``target_modules`` or ``exclude_modules`` is one, the tensors say
which modules were trained. ``adapters.validation.tensor_rules`` checks that the tensors agree.
"""

import re
from typing import Final

from adapters.base_model_spec import LINEAR_KINDS, BaseModelSpec, layer_of
from adapters.manifest import CONFIG_FILE
from adapters.report import Code, ReportBuilder
from adapters.validation.tensor_names import without_wrappers
from core.strict_json import shorten

_TARGETS_MAX: Final = 4096
_PATTERN_CHARS_MAX: Final = 16_384
_AS_IN: Final = 'write a list of literal module names, such as ["q_proj", "v_proj"]'
_TARGET: Final = re.compile(r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*")


def read_targets(config: dict[str, object], base: BaseModelSpec, report: ReportBuilder) -> frozenset[str] | None:
    """The base model's modules that PEFT would adapt; empty when ``report`` has a reason to refuse. None where a
    pattern decides.
    """
    problems_before = report.count
    if _is_pattern(config, "target_modules", report) or _is_pattern(config, "exclude_modules", report):
        return None if report.count == problems_before else frozenset()
    targets = _read_literals(config, "target_modules", report)
    excluded = _read_literals(config, "exclude_modules", report)
    layers = _read_layers(config, report)
    if not targets:
        if report.count == problems_before:
            _refuse(report, "config_invalid", f"target_modules names no module; {_AS_IN}", "target_modules")
        return frozenset()
    known = {suffix for module in base.modules for suffix in _suffixes(module)}
    for target in sorted(targets - known):
        linear = target.rpartition(".")[2] in LINEAR_KINDS
        code: Code = "module_unknown" if linear else "module_not_allowed"
        fix = (
            f"{base.id} has no such linear module; upload the adapter for the base model that it was trained on"
            if linear
            else f"LoRA may be on {', '.join(LINEAR_KINDS)} only; train without it"
        )
        _refuse(report, code, f"target_modules names {shorten(target)}; {fix}", "target_modules")
    return frozenset(
        module
        for module in base.modules
        if not targets.isdisjoint(_suffixes(module))
        and excluded.isdisjoint(_suffixes(module))
        and (layers is None or layer_of(module) in layers)
    )


def _is_pattern(config: dict[str, object], field: str, report: ReportBuilder) -> bool:
    """PEFT's trainers and Unsloth write one pattern as a string."""
    value = config.get(field)
    if not isinstance(value, str) or value == "":
        return False
    if len(value) > _PATTERN_CHARS_MAX:
        text = f"{field} has {len(value)} characters; {_PATTERN_CHARS_MAX} are allowed: {_AS_IN}"
        _refuse(report, "config_invalid", text, field)
    return True


def _read_literals(config: dict[str, object], field: str, report: ReportBuilder) -> frozenset[str]:
    value = config.get(field)
    if value is None:
        return frozenset()
    if isinstance(value, list) and len(value) <= _TARGETS_MAX:
        names = [name for name in value if isinstance(name, str) and len(name) <= 256 and _TARGET.fullmatch(name)]
        if len(names) == len(value):
            return frozenset(map(without_wrappers, names))
    fix = f"patterns are not read; {_AS_IN}"
    _refuse(report, "config_invalid", f"{field} is {shorten(value)}; {fix}", field)
    return frozenset()


def _read_layers(config: dict[str, object], report: ReportBuilder) -> frozenset[int] | None:
    pattern = config.get("layers_pattern")
    if not is_unset(pattern) and pattern not in ("layers", ["layers"]):
        _refuse(
            report,
            "config_field_not_allowed",
            f"layers_pattern is {shorten(pattern)}; set it to null",
            "layers_pattern",
        )
    value = config.get("layers_to_transform")
    if is_unset(value):
        return None
    numbers = value if isinstance(value, list) else [value]
    layers = frozenset(number for number in numbers if type(number) is int and 0 <= number < 10_000)
    if len(layers) != len(numbers):
        _refuse(
            report,
            "config_invalid",
            f"layers_to_transform is {shorten(value)}; write a list of layer numbers from 0 to 9999",
            "layers_to_transform",
        )
    return layers


def _suffixes(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]


def is_unset(value: object) -> bool:
    """Null, false and empty values mean the same as an absent field, in every field of PEFT."""
    return value is None or value is False or value in ("", [], {})


def _refuse(report: ReportBuilder, code: Code, message: str, where: str | None = None) -> None:
    report.refuse(code, message, file=CONFIG_FILE, where=where)
