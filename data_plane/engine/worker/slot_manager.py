"""vLLM's LoRA model manager (0.32, ``vllm/lora/model_manager.py``), changed to accept weights that were merged
beforehand and to inspect and overwrite slots.

``lora_manager`` decides which adapter is loaded or evicted, and when.
"""

from collections.abc import Iterator
from typing import Any

import torch
from vllm.lora.model_manager import LRUCacheLoRAModelManager


class SlotManager(LRUCacheLoRAModelManager):  # type: ignore[misc] # vLLM ships no types
    """Registers weights that were merged beforehand without merging them again, and can inspect slots."""

    def _add_adapter(self, lora: Any) -> None:
        if getattr(lora, "tenora_merged", False):
            self._registered_adapters[lora.id] = lora
        else:
            super()._add_adapter(lora)

    def merge(self, lora: Any) -> None:
        """The part of ``_add_adapter`` that can run beforehand: it changes only ``lora``. Raises ``ValueError`` for
        weights that do not fit a slot.
        """
        self._validate_moe_lora_format(lora)
        self._create_merged_loras_inplace(lora)
        for name, module in self.modules.items():
            if (weights := lora.get_lora(name)) is not None:
                _require_fit(name, weights.lora_a, module.lora_a_stacked)
                _require_fit(name, weights.lora_b, module.lora_b_stacked)
        lora.tenora_merged = True

    def is_in_slot(self, number: int) -> bool:
        """Whether the adapter is in a slot, so that batches can use it."""
        active: bool = number in self._active_adapters
        return active

    def registered(self, number: int) -> Any | None:
        """The adapter's weights in host memory; None when it is not registered."""
        return self._registered_adapters.get(number)

    def touch(self, number: int) -> None:
        """Mark the adapter as the most recently used, in its slot and in host memory."""
        self._active_adapters.touch(number)
        self._registered_adapters.touch(number)

    def oldest_first(self) -> list[int]:
        """The adapters in host memory, the least recently used first."""
        return list(self._registered_adapters.order)

    @property
    def all_slots_used(self) -> bool:
        """Whether the next adapter needs the slot of another."""
        used: int = len(self._active_adapters)
        return used >= int(self.lora_slots)

    def slot_tensors(self, index: int) -> Iterator[torch.Tensor]:
        """Every tensor of a slot, in all layers."""
        for module in self.modules.values():
            for stacked in (*module.lora_a_stacked, *module.lora_b_stacked):
                yield stacked[index]

    def is_zeroed(self, index: int) -> bool:
        """Whether every tensor of a slot is zero, so that no adapter's weights are left in it."""
        return not any(bool(tensor.any()) for tensor in self.slot_tensors(index))

    def zero(self, index: int) -> None:
        """Overwrite a slot with zeros. vLLM itself leaves the weights there until the slot is used again."""
        for module in self.modules.values():
            module.reset_lora(index)


def _require_fit(module: str, weights: Any, stacked: tuple[torch.Tensor, ...]) -> None:
    for given, slots in zip(weights if isinstance(weights, list) else [weights], stacked, strict=True):
        rows, columns = slots.shape[-2:]
        if given is not None and (given.shape[0] > rows or given.shape[1] > columns):
            raise ValueError(f"{module}: {tuple(given.shape)} does not fit a slot of shape {(rows, columns)}")
