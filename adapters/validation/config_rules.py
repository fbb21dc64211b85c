"""The rules for ``adapter_config.json``: everything that vLLM's own check requires, with stricter types.

Source: ``vllm/lora/peft_helper.py`` of 0.32 and ``peft/tuners/lora/config.py`` of 0.21. PEFT's output for a plain LoRA
is accepted; fields that change the mathematics are refused; fields that matter only in training are dropped.
"""

import math
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from adapters.base_model_spec import BaseModelSpec, is_local_path
from adapters.manifest import CONFIG_FILE
from adapters.report import Code, ReportBuilder
from adapters.validation.foreign_names import FROM_MLX
from adapters.validation.pattern_rules import AlphaRule, read_alpha_pattern, read_rank_pattern
from adapters.validation.target_rules import is_unset, read_targets
from core.strict_json import JsonRefused, parse, shorten

CONFIG_BYTES_MAX: Final = 64 * 1024  # 560 literal module names of an 80-layer model are 25 KB
_DEPTH: Final = 8
_ALPHA_MAX: Final = 65_536
_ALPHA_MIN: Final = 1 / 65_536  # below it an update would vanish in bfloat16
_AGAIN: Final = "write it again with PEFT's save_pretrained"
_BASE_FIELD: Final = "base_model_name_or_path"
_PEFT_MODULE: Final = re.compile(r"transformers(?:\.[a-z0-9_]+)*")

# Inits that leave the base model's weights alone, so that the saved adapter is a plain LoRA (PEFTHelper's own list).
_INITS: Final = frozenset({"gaussian", "eva", "orthogonal", "mica", "lora_ga"})

_READ: Final = frozenset({
    "r", "lora_alpha", "use_rslora", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern",
    "base_model_name_or_path", "init_lora_weights", "auto_mapping", "task_type", "rank_pattern", "alpha_pattern",
})  # fmt: skip
_TRAINING_ONLY: Final = frozenset({
    "eva_config", "inference_mode", "lora_dropout", "lora_ga_config", "peft_version", "revision",
})  # fmt: skip
# Another method than plain LoRA: its own code says that editing the config does not help.
_OTHER_METHODS: Final[dict[str, object]] = {
    "peft_type": "LORA", "bias": "none", "use_dora": False, "lora_bias": False, "use_bdlora": None, "use_qalora": False,
    "alora_invocation_tokens": None,
}  # fmt: skip
_DEFAULTS: Final[dict[str, object]] = {"megatron_core": "megatron.core", "qalora_group_size": 16}


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of a config: its numbers, and the modules of the base model that it claims to adapt, None where the
    tensors alone say which. ``ranks`` are the ranks that modules may have; without a ``rank_pattern`` only ``rank``.
    """

    rank: int
    alpha: int | float
    use_rslora: bool
    modules: frozenset[str] | None
    ranks: frozenset[int]
    alpha_rules: tuple[AlphaRule, ...] = ()

    def alpha_of(self, module: str) -> int | float:
        """The module's own alpha."""
        return next((rule.alpha for rule in self.alpha_rules if rule.matches(module)), self.alpha)

    def scaling_of(self, module: str, rank: int) -> float:
        """The factor by which PEFT and vLLM multiply the module's B·A."""
        return self.alpha_of(module) / (math.sqrt(rank) if self.use_rslora else rank)


def check_config(
    text: bytes,
    base: BaseModelSpec,
    known_bases: Mapping[str, str],
    *,
    rank_max: int,
    plan_name: str,
    report: ReportBuilder,
) -> AdapterConfig | None:
    """The config's meaning, or None when ``report`` has a reason to refuse. ``known_bases`` maps every name of a base
    model, in lower case, to its id; ``rank_max`` is the plan's.
    """
    if len(text) > CONFIG_BYTES_MAX:
        _refuse(report, "config_too_large", f"has more than the {CONFIG_BYTES_MAX} bytes that are allowed; {_AGAIN}")
        return None
    try:
        config = parse(text, depth_max=_DEPTH)
    except JsonRefused as error:
        where = None if error.key is None else shorten(error.key).strip('"')
        _refuse(report, "config_invalid", f"{error}; {_AGAIN}", where)
        return None
    if not isinstance(config, dict):
        _refuse(report, "config_invalid", f"must be a JSON object; {_AGAIN}")
        return None
    problems_before = report.count
    if _is_foreign(config, report):  # its other fields say nothing more
        return None
    _check_method(config, report)
    _check_other_fields(config, report)
    _check_base_name(config.get("base_model_name_or_path"), base, known_bases, report)
    pattern_ranks = read_rank_pattern(config, report)
    rank = _read_rank(config.get("r"), report)
    if rank is not None and not pattern_ranks:
        check_rank(rank, base, rank_max=rank_max, plan_name=plan_name, report=report)
    alpha = _read_alpha(config.get("lora_alpha"), report)
    rslora = config.get("use_rslora") or False
    if not isinstance(rslora, bool):
        _refuse(
            report,
            "config_invalid",
            f"use_rslora is {shorten(rslora)}; it must be true or false: {_AGAIN}",
            "use_rslora",
        )
    rules = read_alpha_pattern(config, _ALPHA_MIN, _ALPHA_MAX, report)
    modules = read_targets(config, base, report)
    if report.count > problems_before or rank is None or alpha is None:
        return None
    return AdapterConfig(
        rank=rank,
        alpha=alpha,
        use_rslora=rslora is True,
        modules=modules,
        ranks=pattern_ranks | {rank},
        alpha_rules=rules,
    )


def _check_base_name(name: object, base: BaseModelSpec, known_bases: Mapping[str, str], report: ReportBuilder) -> None:
    """The base model's id or Hub name is accepted, and with a note its further names. Another model's name is refused.
    A path on the trainer's disk proves nothing and gets a note; the shapes decide.
    """
    if name is None or name == "":
        report.note(f"{CONFIG_FILE} does not say which base model it was trained on; its shapes fit {base.id}")
        return
    if not isinstance(name, str) or len(name) > 4096:
        report.refuse(
            "config_invalid",
            f"{_BASE_FIELD} is {shorten(name)}; write {shorten(base.hub_name)}",
            file=CONFIG_FILE,
            where=_BASE_FIELD,
        )
        return
    wanted = {base.id.casefold(), base.hub_name.casefold()}
    if name.casefold() in wanted:
        return
    owner = known_bases.get(name.casefold())
    if owner == base.id:
        report.note(f"{CONFIG_FILE} names {shorten(name)} as its base model, a copy of {base.hub_name}")
        return
    known = owner is not None
    if not known and is_local_path(name):
        report.note(f"{CONFIG_FILE} names the local path {shorten(name)} as its base model; its shapes fit {base.id}")
        return
    fix = (
        f"upload it as an adapter of that base model, or train it on {base.hub_name}"
        if known
        else f"if it was trained on {base.hub_name} or a quantized copy of it, write that name there"
    )
    report.refuse(
        "base_model_mismatch",
        f"{_BASE_FIELD} is {shorten(name)}, but this adapter is for {base.id}; {fix}",
        file=CONFIG_FILE,
        where=_BASE_FIELD,
    )


def _is_foreign(config: dict[str, object], report: ReportBuilder) -> bool:
    """Whether another library, or another method of PEFT, has written the config."""
    method = config.get("peft_type")
    if method is None and "lora_parameters" in config:
        _refuse(report, "format_not_allowed", f"is of MLX's format (lora_parameters); {FROM_MLX}", "lora_parameters")
    elif method is None and "r" not in config:
        text = "has neither peft_type nor r, so it is no adapter's; upload the one that PEFT's save_pretrained writes"
        _refuse(report, "config_invalid", text, "peft_type")
    elif isinstance(method, str) and method != "LORA":
        fix = 'only plain LoRA is served (peft_type "LORA"); train it again, or convert it with peft.save_as_lora'
        _refuse(
            report, "adapter_type_not_supported", f"peft_type is {shorten(method)}; {fix} where PEFT can", "peft_type"
        )
    else:
        return False
    return True


def _check_method(config: dict[str, object], report: ReportBuilder) -> None:
    if config.get("peft_type") is None:
        _refuse(
            report,
            "config_invalid",
            'peft_type is missing; set it to "LORA", the only type that is served',
            "peft_type",
        )
    for field, plain in _OTHER_METHODS.items():
        value = config.get(field, plain)
        if value != plain and (plain == "none" or not is_unset(value)):  # vLLM wants the word, and no null for it
            fix = f"only plain LoRA is served ({field} {shorten(plain)}); train it again without this option"
            _refuse(report, "adapter_type_not_supported", f"{field} is {shorten(value)}; {fix}", field)
    task = config.get("task_type")
    if task not in (None, "CAUSAL_LM"):
        _refuse(
            report,
            "adapter_type_not_supported",
            f'task_type is {shorten(task)}; only "CAUSAL_LM" is served: train a causal language model',
            "task_type",
        )
    init = config.get("init_lora_weights")
    if not (init is None or isinstance(init, bool) or (isinstance(init, str) and init.lower() in _INITS)):
        fix = "inits that change the base model need PEFT's path_initial_model_for_weight_conversion when saving"
        _refuse(
            report, "adapter_type_not_supported", f"init_lora_weights is {shorten(init)}; {fix}", "init_lora_weights"
        )


def _check_other_fields(config: dict[str, object], report: ReportBuilder) -> None:
    mapping = config.get("auto_mapping")
    if mapping is not None and not _is_written_by_peft(mapping):
        _refuse(
            report, "config_field_not_allowed", f"auto_mapping is {shorten(mapping)}; set it to null", "auto_mapping"
        )
    for field in config.keys() - _READ - _TRAINING_ONLY - _OTHER_METHODS.keys():
        value = config[field]
        if not is_unset(value) and value != _DEFAULTS.get(field):
            name, fix = shorten(field).strip('"'), "train without it, or remove it if it had no effect"
            _refuse(report, "config_field_not_allowed", f"{name} is {shorten(value)}, which is not served; {fix}", name)


def _is_written_by_peft(mapping: object) -> bool:
    """PEFT writes the class that it wrapped when no task type was given. The field is dropped. A value that names other
    code is refused, because PEFT imports ``parent_library``.
    """
    if not isinstance(mapping, dict) or not mapping.keys() <= {"base_model_class", "parent_library", "unsloth_fixed"}:
        return False
    name, library = mapping.get("base_model_class"), mapping.get("parent_library")
    return (
        isinstance(name, str)
        and name.isidentifier()
        and isinstance(library, str)
        and bool(_PEFT_MODULE.fullmatch(library))
    )


def check_rank(
    rank: int, base: BaseModelSpec, *, rank_max: int, plan_name: str, report: ReportBuilder, module: str | None = None
) -> None:
    """Refuse a rank above the plan's or the replicas'. ``module`` is the one that has it, if not all have."""
    if rank <= min(rank_max, base.rank_max):
        return
    bound = f'plan "{plan_name}" allows {rank_max}' if rank_max <= base.rank_max else (
        f"replicas of {base.id} serve ranks up to {base.rank_max}"
    )  # fmt: skip
    what, where = ("r is", "r") if module is None else (f"the rank of {module} is", "rank_pattern")
    fix = f"train with {'r' if module is None else 'ranks'} at most {min(rank_max, base.rank_max)}"
    _refuse(report, "rank_too_large", f"{what} {shorten(rank)}; {bound}: {fix}", where)


def _read_rank(value: object, report: ReportBuilder) -> int | None:
    if type(value) is not int or value < 1:
        _refuse(
            report, "config_invalid", f"r is {shorten(value)}; it must be a whole number of at least 1: {_AGAIN}", "r"
        )
        return None
    return value


def _read_alpha(value: object, report: ReportBuilder) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _ALPHA_MIN <= value <= _ALPHA_MAX:
        fix = f"it must be a number from 1/{_ALPHA_MAX} to {_ALPHA_MAX}: train with such a lora_alpha"
        _refuse(report, "config_invalid", f"lora_alpha is {shorten(value)}; {fix}", "lora_alpha")
        return None
    return int(value) if value == int(value) else value


def _refuse(report: ReportBuilder, code: Code, message: str, where: str | None = None) -> None:
    report.refuse(code, message, file=CONFIG_FILE, where=where)
