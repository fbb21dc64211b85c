"""vLLM's LoRA model manager (0.32, ``vllm/lora/model_manager.py``) with its merging done beforehand and a look into its
slots. When what is loaded or evicted is decided in ``worker_tiers``.
"""

from collections.abc import Iterator
from typing import Any

import torch
from vllm.lora.model_manager import LRUCacheLoRAModelManager


class SlotManager(LRUCacheLoRAModelManager):  # type: ignore[misc] # vLLM ships no types
    """Registers weights that were merged beforehand without merging them again, and can look into slots."""

    def _add_adapter(self, lora: Any) -> None:
        if getattr(lora, "tenora_merged", False):
            self._registered_adapters[lora.id] = lora
        else:
            super()._add_adapter(lora)

    def merge(self, lora: Any) -> None:
        """The half of ``_add_adapter`` that can be done beforehand: it changes nothing but ``lora``. Raises
        ``ValueError`` for weights that a slot cannot take.
        """
        self._validate_moe_lora_format(lora)
        self._create_merged_loras_inplace(lora)
        for name, module in self.modules.items():
            if (weights := lora.get_lora(name)) is not None:
                _check_fit(name, weights.lora_a, module.lora_a_stacked)
                _check_fit(name, weights.lora_b, module.lora_b_stacked)
        lora.tenora_merged = True

    def is_in_slot(self, number: int) -> bool:
        """Whether batches can use it."""
        held: bool = number in self._active_adapters
        return held

    def registered(self, number: int) -> Any | None:
        """Its weights in host memory."""
        return self._registered_adapters.get(number)

    def touch(self, number: int) -> None:
        """It is the most recently used, wherever it lies."""
        self._active_adapters.touch(number)
        self._registered_adapters.touch(number)

    def oldest_first(self) -> list[int]:
        """What host memory holds, the least recently used first."""
        return list(self._registered_adapters.order)

    @property
    def all_slots_used(self) -> bool:
        """Whether the next adapter takes another one's slot."""
        used: int = len(self._active_adapters)
        return used >= int(self.lora_slots)

    def slot_tensors(self, index: int) -> Iterator[torch.Tensor]:
        """Every tensor of a slot, in all layers."""
        for module in self.modules.values():
            for stacked in (*module.lora_a_stacked, *module.lora_b_stacked):
                yield stacked[index]

    def is_zeroed(self, index: int) -> bool:
        """Whether nothing of any adapter is left in a slot, by its tensors."""
        return not any(bool(tensor.any()) for tensor in self.slot_tensors(index))

    def zero(self, index: int) -> None:
        """Overwrite a slot. vLLM itself leaves the weights there until the slot is used again."""
        for module in self.modules.values():
            module.reset_lora(index)


def _check_fit(module: str, weights: Any, stacked: tuple[torch.Tensor, ...]) -> None:
    for given, slots in zip(weights if isinstance(weights, list) else [weights], stacked, strict=True):
        rows, columns = slots.shape[-2:]
        if given is not None and (given.shape[0] > rows or given.shape[1] > columns):
            raise ValueError(f"{module}: {tuple(given.shape)} does not fit a slot of {(rows, columns)}")
