"""vLLM's LoRA worker manager (0.32, ``vllm/lora/worker_manager.py``) with loading moved out of the steps: loader
threads read, check and merge weights, and a step only registers them and copies them into a slot.

A step never fails because of a missing file. An adapter that cannot be loaded in a step gets an empty slot and is
marked as failed. The middleware then aborts its requests before any of their tokens is sent, and all other requests
continue. An adapter in use is never evicted from host memory; the middleware passes on only as many as fit. Fails
closed.
"""

import time
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final

import structlog
import torch
from vllm.lora.lora_model import LoRAModel
from vllm.lora.request import LoRARequest
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
from vllm.utils.gpu_sync_debug import gpu_sync_allowed
from vllm.utils.torch_utils import PIN_MEMORY
from vllm.v1.worker import lora_model_runner_mixin

from core.adapter_names import digest_of
from data_plane.engine.cpu_lora.tables import to_rank_major
from data_plane.engine.settings import SharedEngineSettings
from data_plane.engine.worker.loader_server import LoaderServer
from data_plane.engine.worker.private_copy import private_copy
from data_plane.engine.worker.residency_table import ResidencyTable
from data_plane.engine.worker.slot_manager import SlotManager

_log: Final = structlog.get_logger()
_NO_NUMBER: Final = 1  # the front end assigns the number with the request that uses the weights


class LoraManager(LRUCacheWorkerLoRAManager):  # type: ignore[misc] # vLLM ships no types
    """Loads and evicts the adapters that requests name. All methods run in the worker's single step thread, except
    ``load``, which runs in the loader's threads.
    """

    _manager_cls = SlotManager

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        settings = SharedEngineSettings()
        self._scratch = settings.run_dir
        self._names: dict[int, str] = {}
        self._known_zeroed: set[int] = set()  # free slots that were inspected since their last use
        self._table: ResidencyTable[Any] = ResidencyTable(slots=self.lora_config.max_loras)
        self._server = LoaderServer(self._table, settings.run_dir, self.load, loaders=settings.engine_loader_threads)

    def create_lora_manager(self, model: torch.nn.Module, vllm_config: Any) -> Any:
        """VLLM calls this once, after it has loaded the base model: from now on there are slots."""
        if vllm_config.parallel_config.world_size != 1:
            raise RuntimeError("Tenora supports one worker per engine; start the engine without tensor parallelism")
        wrapped = super().create_lora_manager(model, vllm_config)
        self._server.start()
        return wrapped

    # Runs in the loader's threads.

    def load(self, name: str, path: str) -> bool:
        """Read, check and merge an adapter while steps run. Raises one of vLLM's many errors for files that it cannot
        use. False when the adapter is no longer needed.
        """
        started = time.monotonic()
        lora = self._read(name, path)
        self._table.record_load(name, "memory", _ms_since(started), in_step=False)
        return self._table.stage(name, lora)

    def _read(self, name: str, path: str) -> Any:
        with private_copy(Path(path), digest_of(name), self._scratch) as folder:
            request = LoRARequest(lora_name=name, lora_int_id=_NO_NUMBER, lora_path=str(folder))
            lora = self._load_adapter(request)
            if not PIN_MEMORY:  # pinned memory is a copy already
                for (
                    weights
                ) in lora.loras.values():  # copied out of the file's memory map, so that no step waits for a page
                    weights.lora_a, weights.lora_b = weights.lora_a.clone(), to_rank_major(weights.lora_b)
        self._adapter_manager.merge(lora)
        return lora

    # Runs in the step thread.

    def add_adapter(self, lora_request: Any) -> bool:
        """``add_lora`` of the front end: register in host memory only. The first step that needs the adapter takes a
        slot for it, so that no running request loses its slot to it.
        """
        if self._adapter_manager.registered(lora_request.lora_int_id) is not None:
            return False
        with gpu_sync_allowed():
            self._register(lora_request, frozenset(), in_step=False)
        return True

    def remove_all_adapters(self) -> None:
        """VLLM also calls this after its warm-up with dummy adapters."""
        super().remove_all_adapters()
        self._names.clear()
        self._record_tables()

    def _apply_adapters(self, lora_requests: set[Any]) -> None:
        manager = self._adapter_manager
        requests = [request for request in lora_requests if request]
        if len(requests) > manager.lora_slots:
            raise RuntimeError(f"a step with {len(requests)} adapters for {manager.lora_slots} slots")
        missing = [request for request in requests if not manager.is_in_slot(request.lora_int_id)]
        for (
            request
        ) in requests:  # before any load, so that no adapter of this step loses its slot to another of the same step
            manager.touch(request.lora_int_id)
        if missing:
            used_now = {request.lora_name for request in requests}
            for request in missing:
                self._load_into_slot(request, used_now)
        if self._table.staged_count:
            used_now = {request.lora_name for request in requests}
            self._table.evict_unwanted(used_now)
            self._evict_for_staged(used_now)

    def _load_into_slot(self, request: Any, used_now: AbstractSet[str]) -> None:
        manager, started, name = self._adapter_manager, time.monotonic(), request.lora_name
        full = manager.all_slots_used
        with gpu_sync_allowed():
            try:
                if manager.registered(request.lora_int_id) is None:
                    self._register(request, used_now, in_step=True)
                manager.activate_adapter(request.lora_int_id)
            except Exception as error:  # noqa: BLE001 - an exception in a step would end the engine for every request
                _log.error("adapter failed in a step; its slot stays empty", adapter=name, reason=repr(error))
                self._fill_with_empty_adapter(request, used_now)
                self._table.record_failure(name)
        self._known_zeroed.discard(manager.lora_index_to_id.index(request.lora_int_id))
        self._record_tables(used=name, slot_evictions=int(full))
        self._table.record_load(name, "slot", _ms_since(started), in_step=True)
        if self._table.has_failed(name):
            self._server.write_now()  # before this step's tokens can be sent

    def _register(self, request: Any, used_now: AbstractSet[str], *, in_step: bool) -> None:
        """Put an adapter into host memory and evict another one if need be. Reads from disk only for a request that
        bypassed the middleware.
        """
        manager, name = self._adapter_manager, request.lora_name
        if self._table.is_revoked(name):
            raise ValueError(f"{name} was revoked")
        lora = self._table.take_staged(name)
        if lora is None and (known := self._number_of(name)) is not None:
            lora = manager.registered(known)  # the front end dropped the name and gave it a new number
            self._evict(known)
        if lora is None:
            started = time.monotonic()
            lora = self._read(name, request.lora_path)
            if not in_step:  # otherwise it is part of the load into the slot, for which the step waits
                self._table.record_load(name, "memory", _ms_since(started), in_step=True)
        lora.id = request.lora_int_id
        evicted = self._evict_until_room(used_now)
        manager.add_adapter(lora)
        self._names[lora.id] = name
        self._record_tables(memory_evictions=evicted)

    def _fill_with_empty_adapter(self, request: Any, used_now: AbstractSet[str]) -> None:
        """Fill the request's slot with an adapter that adds nothing."""
        self._evict(request.lora_int_id)
        self._evict_until_room(used_now)
        empty = LoRAModel(request.lora_int_id, 1, {})
        empty.tenora_merged = True
        self._adapter_manager.add_adapter(empty)
        self._names[empty.id] = request.lora_name
        self._adapter_manager.activate_adapter(empty.id)

    def _evict_until_room(self, used_now: AbstractSet[str]) -> int:
        """Evict until one more adapter can be registered. Returns the number of evictions."""
        evicted = 0
        while len(self._adapter_manager) >= self._adapter_manager.capacity:
            by_name = self._registered_by_name()
            victim = self._table.victim(by_name, used_now, must=True)
            assert victim is not None, (
                "a step uses at most as many adapters as there are slots, and memory holds as many"
            )
            self._evict(by_name[victim])
            evicted += 1
        return evicted

    def _evict_for_staged(self, used_now: AbstractSet[str]) -> None:
        """Evict unused adapters until the staged ones fit: they count as host memory. The engine may still use an
        adapter that the middleware has released, since the engine learns later that a caller disconnected. Slots that
        this step uses are therefore never emptied.
        """
        evicted = 0
        while len(self._adapter_manager) + self._table.staged_count > self._adapter_manager.capacity:
            by_name = self._registered_by_name()
            if (victim := self._table.victim(by_name, used_now, must=False)) is None:
                break
            self._evict(by_name[victim])
            evicted += 1
        if evicted:
            self._record_tables(memory_evictions=evicted)

    def _registered_by_name(self) -> dict[str, int]:
        return {self._names.get(each, f"#{each}"): each for each in self._adapter_manager.oldest_first()}

    def _number_of(self, name: str) -> int | None:
        return next((number for number, each in self._names.items() if each == name), None)

    def _evict(self, number: int) -> None:
        """Remove an adapter from host memory and from its slot, and zero the slot: vLLM would leave its tensors as they
        are.
        """
        manager = self._adapter_manager
        slot = manager.lora_index_to_id.index(number) if number in manager.lora_index_to_id else None
        manager.remove_adapter(number)
        if slot is not None:
            manager.zero(slot)
        self._names.pop(number, None)

    def _record_tables(self, *, used: str | None = None, slot_evictions: int = 0, memory_evictions: int = 0) -> None:
        """Copy vLLM's tables to the residency table: all of host memory, unless only ``used`` was put into a slot."""
        manager = self._adapter_manager
        self._table.record_tables(
            slots=tuple(
                None if each is None else self._names.get(each, f"#{each}") for each in manager.lora_index_to_id
            ),
            memory=self._registered_by_name() if used is None else None,
            used=used,
            slot_evictions=slot_evictions,
            memory_evictions=memory_evictions,
        )

    # The front end calls these between two steps, through ``WorkerExtension``.

    def inventory(self) -> dict[str, Any]:
        """The content of vLLM's own tables and tensors: ``slots``, ``memory`` and ``staged``."""
        manager = self._adapter_manager
        slots = []
        for index, number in enumerate(manager.lora_index_to_id):
            if number is None and index not in self._known_zeroed and manager.is_zeroed(index):
                self._known_zeroed.add(index)
            name = None if number is None else self._names.get(number, f"#{number}")
            zeroed = number is None and index in self._known_zeroed
            slots.append({"index": index, "lora_int_id": number, "name": name, "zeroed": zeroed})
        memory = [{"lora_int_id": number, "name": name} for name, number in self._registered_by_name().items()]
        return {"slots": slots, "memory": memory, "staged": list(self._table.staged())}

    def unload(self, name: str) -> dict[str, Any]:
        """Remove an adapter from slots, host memory and staging, zero free slots, and return the new inventory."""
        for number in [number for number, each in self._names.items() if each == name]:
            self._evict(number)
        self._table.evict(name)
        for index, number in enumerate(self._adapter_manager.lora_index_to_id):
            if number is None and index not in self._known_zeroed and not self._adapter_manager.is_zeroed(index):
                self._adapter_manager.zero(index)
        self._record_tables()
        return self.inventory()


class WorkerExtension:
    """Methods that vLLM adds to its worker (``--worker-extension-cls``), for the front end's ``collective_rpc``."""

    model_runner: Any

    def tenora_inventory(self) -> dict[str, Any]:
        """``LoraManager.inventory``."""
        inventory: dict[str, Any] = self.model_runner.lora_manager.inventory()
        return inventory

    def tenora_unload(self, name: str) -> dict[str, Any]:
        """``LoraManager.unload``."""
        inventory: dict[str, Any] = self.model_runner.lora_manager.unload(name)
        return inventory


def _ms_since(started: float) -> float:
    return (time.monotonic() - started) * 1000


def install() -> None:
    """Make vLLM's model runners use ``LoraManager``."""
    lora_model_runner_mixin.LRUCacheWorkerLoRAManager = LoraManager
