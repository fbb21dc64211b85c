"""Checks every tensor's name, module, dtype and shape against the base model's table, from the header only.

vLLM slices its buffers by a tensor's own shape, so a smaller tensor loads without an error and gives wrong answers; and
it skips modules that it does not find. Therefore each pair must exist and fit exactly.
``adapters.validation.weight_rules`` checks the values.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from adapters.base_model_spec import BaseModelSpec, kind_of
from adapters.manifest import WEIGHTS_FILE
from adapters.report import Code, ReportBuilder
from adapters.safetensors_header import NOT_GATHERED, TensorEntry
from adapters.validation.config_rules import AdapterConfig
from adapters.validation.foreign_names import TRAINED_ON, explain
from adapters.validation.tensor_names import NameMap, canonical_name, map_names, parse_lora_name, plain_name

SIDES: Final = ("A", "B")
DTYPES: Final = ("F32", "F16", "BF16", "F64")

_SAVE_AS: Final = "save it as F32, F16 or BF16"


class LoraPair(msgspec.Struct, frozen=True, kw_only=True):
    """The two factors of one module: A is [rank, in_features], B is [out_features, rank]."""

    module: str
    a: TensorEntry
    b: TensorEntry

    @property
    def rank(self) -> int:
        """The module's own rank."""
        return self.a.shape[0]


def check_tensors(
    tensors: Sequence[TensorEntry], config: AdapterConfig, base: BaseModelSpec, report: ReportBuilder
) -> list[LoraPair]:
    """The pairs in the order of their modules. Complete only when ``report`` has no new problem."""
    problems_before = report.count
    if not tensors:
        _refuse(
            report, "module_unknown", f"has no LoRA weight, no tensor at all; save the adapter again: {NOT_GATHERED}"
        )
        return []
    mapped = map_names((tensor.name for tensor in tensors), base.modules)
    _check_names(tensors, mapped, base, report)
    is_mapped = report.count == problems_before
    sides: dict[str, dict[str, TensorEntry]] = {}
    for tensor in tensors:
        if place := mapped.places.get(tensor.name):
            module, side = place
            sides.setdefault(module, {})[side] = tensor
            _check_shape(tensor, base.modules[module], side, config.ranks, report)
    if is_mapped:  # otherwise what seems to be missing has another name
        _check_agreement(sides.keys(), config, report)
    pairs = []
    for module, found in sorted(sides.items()):
        if len(found) == len(SIDES):
            pairs.append(LoraPair(module=module, a=found["A"], b=found["B"]))
            _check_one_rank(pairs[-1], report)
        elif is_mapped:
            missing = canonical_name(module, "B" if "A" in found else "A")
            _refuse(report, "tensor_missing", f"{missing} is missing; save the adapter again", missing)
    if report.count == problems_before:
        _note_changes(tensors, mapped, report)
    return pairs


def _check_names(tensors: Iterable[TensorEntry], mapped: NameMap, base: BaseModelSpec, report: ReportBuilder) -> None:
    """Refuse names without a place, and names that share one."""
    if len(mapped.adapters) > 1:
        first, second = mapped.adapters[:2]
        fix = f'upload one of them: model.save_pretrained(folder, selected_adapters=["{first}"])'
        _refuse(report, "tensor_name_invalid", f"has weights of several adapters, {first} and {second}; {fix}")
        return
    shared = {name for names in mapped.doubled for name in names}
    for first, second in mapped.doubled:
        text = f"{first} and {second} name the same weight; leave one of them out"
        _refuse(report, "tensor_name_invalid", text, second, cause="doubled")
    unknown = [tensor.name for tensor in tensors if tensor.name not in mapped.places and tensor.name not in shared]
    plain_modules = frozenset(map(plain_name, base.modules)) if unknown else frozenset()
    has_lora = bool(mapped.places) or any(map(parse_lora_name, unknown))
    for name in unknown:
        code, text = explain(name, base, plain_modules, has_lora=has_lora)
        _refuse(report, code, f"{name} {text}", name)


def _note_changes(tensors: Sequence[TensorEntry], mapped: NameMap, report: ReportBuilder) -> None:
    """What is written in another form than it was uploaded in, each change once."""
    renamed = [
        (name, canonical_name(*place)) for name, place in mapped.places.items() if name != canonical_name(*place)
    ]
    if renamed:
        old, new = renamed[0]
        report.note(f"{len(renamed)} of {len(tensors)} tensors were renamed to PEFT's names, such as {old} to {new}")
    if wide := sum(tensor.dtype == "F64" for tensor in tensors):
        report.note(f"{wide} of {len(tensors)} tensors are F64; they were rounded, as all weights, to BF16")


def _check_one_rank(pair: LoraPair, report: ReportBuilder) -> None:
    if len(pair.a.shape) == len(pair.b.shape) == 2 and pair.a.shape[0] != pair.b.shape[1]:
        text = (
            f"{pair.a.name} has rank {pair.a.shape[0]} and {pair.b.name} rank {pair.b.shape[1]}: save the adapter again"
        )
        _refuse(report, "rank_mismatch", text, pair.b.name, cause="pair")


def _check_shape(
    tensor: TensorEntry, features: tuple[int, int], side: str, ranks: AbstractSet[int], report: ReportBuilder
) -> None:
    in_features, out_features = features
    if tensor.dtype not in DTYPES:
        why = (
            "convert it with tensor.to(torch.bfloat16), which is exact"
            if tensor.dtype.startswith("F8")
            else "PEFT keeps LoRA weights in floating point, also beside a quantized base model"
        )
        _refuse(report, "dtype_not_allowed", f"{tensor.name} is {tensor.dtype}; {_SAVE_AS}: {why}", tensor.name)
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
        _refuse(report, "rank_mismatch", text, tensor.name, cause="rank")
        return
    fix = TRAINED_ON
    if tensor.shape == wanted[::-1]:
        fix = "it is transposed: save it again with PEFT's save_pretrained"
    elif len(tensor.shape) == 1:
        fix = (
            f"a flat weight is a piece that a sharded trainer did not gather: save the full state dict, or {TRAINED_ON}"
        )
    text = f"{tensor.name} has shape {shown}; the base model needs {expected}; {fix}"
    _refuse(report, "shape_mismatch", text, tensor.name, cause=fix)


def _check_agreement(found: AbstractSet[str], config: AdapterConfig, report: ReportBuilder) -> None:
    """The tensors must be exactly those of the targeted modules, as far as the config names them. PEFT itself writes
    nothing else.
    """
    if config.modules is None:
        return
    extra = sorted(found - config.modules)
    kinds = ", ".join(sorted({kind_of(module) for module in extra}))
    for module in extra:
        fix = f"adapter_config.json does not target it; add {kinds} to target_modules or leave it out"
        name = canonical_name(module, "A")
        _refuse(report, "module_not_allowed", f"{name}: {fix}", name)
    for module in sorted(config.modules - found):
        missing = canonical_name(module, "A")
        fix = "adapter_config.json targets it; save the adapter again, or set layers_to_transform to the trained layers"
        _refuse(report, "tensor_missing", f"{missing} is missing: {fix}", missing)


def _refuse(
    report: ReportBuilder, code: Code, message: str, where: str | None = None, *, cause: str | None = None
) -> None:
    report.refuse(code, message, file=WEIGHTS_FILE, where=where, cause=cause)
