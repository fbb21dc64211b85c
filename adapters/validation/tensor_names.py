"""Maps the names that trainers give to LoRA weights to the base model's modules, one to one. Pure.

``state_dict()`` keeps the adapter's name, ``torch.compile``, DDP, FSDP and checkpointing add the names of their
wrappers, and some trainers leave out or repeat PEFT's prefix. None of this changes what a weight means.
``adapters.validation.foreign_names`` explains the names that have no place here.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final, Literal

import msgspec

Side = Literal["A", "B"]

PREFIX: Final = "base_model.model."

_WRAPPERS: Final = frozenset({
    "_orig_mod", "module", "_module", "_fsdp_wrapped_module", "_fpw_module", "_checkpoint_wrapped_module",
    "_forward_module",
})  # fmt: skip
_LEADING: Final = frozenset({"base_model", "model", "language_model", "pretrained_model"})
_LORA: Final = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(?:(?:\.(?P<adapter>[^.]+))?\.weight)?")


class NameMap(msgspec.Struct, frozen=True, kw_only=True):
    """``places`` has the module and side of each name. ``doubled`` are names of one place, which have none.
    ``adapters`` are the names of adapters that stand in the tensors' names.
    """

    places: dict[str, tuple[str, Side]]
    doubled: list[tuple[str, str]]
    adapters: list[str]


def map_names(names: Iterable[str], modules: Collection[str]) -> NameMap:
    """The place of each name in ``modules``, as far as it has one."""
    exact, by_plain = frozenset(modules), _unique_plain_names(modules)
    sources: defaultdict[tuple[str, Side], list[str]] = defaultdict(list)
    adapters = set()
    for name in names:
        parsed = parse_lora_name(name)
        if parsed is None:
            continue
        path, side, adapter = parsed
        as_written = path.removeprefix(PREFIX)
        module = as_written if as_written in exact else by_plain.get(plain_name(path))
        if module is not None:
            sources[module, side].append(name)
            adapters |= {adapter} - {None}
    return NameMap(
        places={found[0]: place for place, found in sources.items() if len(found) == 1},
        doubled=[(found[0], other) for found in sources.values() for other in found[1:]],
        adapters=sorted(adapter for adapter in adapters if adapter),
    )


def parse_lora_name(name: str) -> tuple[str, Side, str | None] | None:
    """The path of the module, the side and the adapter's name of a LoRA weight, without wrappers. None for any other
    tensor.
    """
    match = _LORA.fullmatch(without_wrappers(name))
    return match and (match["module"], "A" if match["side"] == "A" else "B", match["adapter"])


def without_wrappers(path: str) -> str:
    """The path without the modules that ``torch.compile``, DDP, FSDP and activation checkpointing put around others."""
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def plain_name(path: str) -> str:
    """The path without the models that only hold another one: ``layers.0.self_attn.q_proj``."""
    parts = path.split(".")
    start = next((place for place, part in enumerate(parts) if part not in _LEADING), len(parts))
    return ".".join(parts[start:])


def canonical_name(module: str, side: str) -> str:
    """The name of a tensor in a PEFT file."""
    return f"{PREFIX}{module}.lora_{side}.weight"


def _unique_plain_names(modules: Collection[str]) -> dict[str, str]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules:
        found[plain_name(module)].append(module)
    return {plain: same[0] for plain, same in found.items() if len(same) == 1}
