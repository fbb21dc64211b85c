"""Checks every tensor's name, module, dtype and shape against the base model's table, from the header only.

vLLM slices its buffers by a tensor's own shape, so a smaller tensor loads without an error and gives wrong answers; and
it skips modules that it does not find. Therefore each pair must exist and fit exactly.
``adapters.validation.weight_rules`` checks the values.
"""

import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final, Literal

import msgspec

from adapters.base_model_spec import LINEAR_KINDS, BaseModelSpec, kind_of
from adapters.manifest import WEIGHTS_FILE
from adapters.report import Code, ReportBuilder
from adapters.safetensors_header import TensorEntry
from adapters.validation.config_rules import AdapterConfig

PREFIX: Final = "base_model.model."
SIDES: Final = ("A", "B")
DTYPES: Final = ("F32", "F16", "BF16")

_TRAINED_ON: Final = "upload the adapter for the base model that it was trained on"
_NAME: Final = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_OTHER_METHOD: Final = re.compile(r".*(lora_magnitude_vector|lora_[AB]\.bias|vera_|ia3_|hada_|oft_|boft_).*")
_NOT_LINEAR: Final = re.compile(r".*(lm_head|embed_tokens|lora_embedding_[AB]|norm|modules_to_save).*")


class LoraPair(msgspec.Struct, frozen=True, kw_only=True):
    """The two factors of one module: A is [rank, in_features], B is [out_features, rank]."""

    module: str
    a: TensorEntry
    b: TensorEntry

    @property
    def rank(self) -> int:
        """The module's own rank."""
        return self.a.shape[0]


def canonical_name(module: str, side: str) -> str:
    """The name of a tensor in a PEFT file."""
    return f"{PREFIX}{module}.lora_{side}.weight"


def check_tensors(
    tensors: Iterable[TensorEntry], config: AdapterConfig, base: BaseModelSpec, report: ReportBuilder
) -> list[LoraPair]:
    """The pairs in the order of their modules. Complete only when ``report`` has no new problem."""
    sides: dict[str, dict[str, TensorEntry]] = {}
    for tensor in tensors:
        if located := _locate(tensor, base, report):
            module, side = located
            sides.setdefault(module, {})[side] = tensor
            _check_shape(tensor, base.modules[module], side, config.ranks, report)
    _check_agreement(sides.keys(), config, report)
    pairs = []
    for module, found in sorted(sides.items()):
        if len(found) == len(SIDES):
            pairs.append(LoraPair(module=module, a=found["A"], b=found["B"]))
            _check_one_rank(pairs[-1], report)
        else:
            missing = canonical_name(module, "B" if "A" in found else "A")
            _refuse(report, "tensor_missing", f"{missing} is missing; save the adapter again", missing)
    return pairs


def _locate(tensor: TensorEntry, base: BaseModelSpec, report: ReportBuilder) -> tuple[str, Literal["A", "B"]] | None:
    name = tensor.name
    match = _NAME.fullmatch(name)
    if match and match["module"] in base.modules:
        return match["module"], "A" if match["side"] == "A" else "B"
    if _OTHER_METHOD.fullmatch(name):
        _refuse(
            report,
            "adapter_type_not_supported",
            f"{name} is no plain LoRA weight; only plain LoRA is served: train it again without other methods",
            name,
        )
    elif _NOT_LINEAR.fullmatch(name):
        kinds = ", ".join(LINEAR_KINDS)
        _refuse(
            report, "module_not_allowed", f"{name} changes a module that is not one of {kinds}; train without it", name
        )
    elif match:
        why = f"{base.id} has no linear module {match['module']}; {_TRAINED_ON}"
        _refuse(report, "module_unknown", f"{name}: {why}", name)
    else:
        wanted = f"{PREFIX}<module>.lora_A.weight"
        _refuse(
            report,
            "tensor_name_invalid",
            f"{name} is not a name that PEFT writes ({wanted}); save it again with save_pretrained",
            name,
        )
    return None


def _check_one_rank(pair: LoraPair, report: ReportBuilder) -> None:
    if len(pair.a.shape) == len(pair.b.shape) == 2 and pair.a.shape[0] != pair.b.shape[1]:
        text = (
            f"{pair.a.name} has rank {pair.a.shape[0]} and {pair.b.name} rank {pair.b.shape[1]}: save the adapter again"
        )
        _refuse(report, "rank_mismatch", text, pair.b.name)


def _check_shape(
    tensor: TensorEntry, features: tuple[int, int], side: str, ranks: AbstractSet[int], report: ReportBuilder
) -> None:
    in_features, out_features = features
    if tensor.dtype not in DTYPES:
        allowed = ", ".join(DTYPES)
        _refuse(
            report, "dtype_not_allowed", f"{tensor.name} is {tensor.dtype}; save it as one of {allowed}", tensor.name
        )
    is_shaped, found_rank = len(tensor.shape) == 2, 0
    if is_shaped:
        found_rank = tensor.shape[0] if side == "A" else tensor.shape[1]
    rank = found_rank if found_rank in ranks else min(ranks)
    wanted = (rank, in_features) if side == "A" else (out_features, rank)
    if tensor.shape == wanted:
        return
    shown, expected = list(tensor.shape), list(wanted)
    if is_shaped and found_rank != rank and tensor.shape[side == "A"] == wanted[side == "A"]:
        said = f"r is {rank}" if len(ranks) == 1 else f"ranks are {', '.join(map(str, sorted(ranks)))}"
        text = f"{tensor.name} has rank {found_rank}, adapter_config.json says {said}: upload files of one save"
        _refuse(report, "rank_mismatch", text, tensor.name)
    else:
        text = f"{tensor.name} has shape {shown}; the base model needs {expected}; {_TRAINED_ON}"
        _refuse(report, "shape_mismatch", text, tensor.name)


def _check_agreement(found: Iterable[str], config: AdapterConfig, report: ReportBuilder) -> None:
    """The tensors must be exactly those of the targeted modules, as far as the config names them. PEFT itself writes
    nothing else.
    """
    modules = set(found)
    if not modules:
        _refuse(report, "module_unknown", "has no LoRA weight for any module of the base model; save the adapter again")
        return
    if config.modules is None:
        return
    for module in sorted(modules - config.modules):
        fix = f"adapter_config.json does not target it; add {kind_of(module)} to target_modules or leave it out"
        name = canonical_name(module, "A")
        _refuse(report, "module_not_allowed", f"{name}: {fix}", name)
    for module in sorted(config.modules - modules):
        missing = canonical_name(module, "A")
        fix = "adapter_config.json targets it; save the adapter again, or set layers_to_transform to the trained layers"
        _refuse(report, "tensor_missing", f"{missing} is missing: {fix}", missing)


def _refuse(report: ReportBuilder, code: Code, message: str, where: str | None = None) -> None:
    report.refuse(code, message, file=WEIGHTS_FILE, where=where)
