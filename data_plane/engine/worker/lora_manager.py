"""vLLM's LoRA worker manager (0.32, ``vllm/lora/worker_manager.py``) with the loading taken out of the step: weights
are read, checked and merged by a thread of ours, and a step only registers them and copies a slot.

Nothing in a step may fail for want of a file: an adapter that cannot be had there gets an empty slot and is noted as
failed, so that the door ends its requests before a token of theirs leaves, and every other request goes on. An adapter
in use is never evicted from host memory; the door lets in no more of them than fit. Fails closed.
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
from data_plane.engine.cpu_lora.tables import with_ranks_apart
from data_plane.engine.settings import SharedEngineSettings
from data_plane.engine.worker.loader_server import LoaderServer
from data_plane.engine.worker.private_copy import private_copy
from data_plane.engine.worker.residency_table import ResidencyTable
from data_plane.engine.worker.slot_manager import SlotManager

_log: Final = structlog.get_logger()
_NO_NUMBER: Final = 1  # the front end's comes with the request that uses the weights


class LoraManager(LRUCacheWorkerLoRAManager):  # type: ignore[misc] # vLLM ships no types
    """What a worker does when requests name adapters. All of it runs in the worker's one step thread, except
    ``load``, which the loader's threads call.
    """

    _manager_cls = SlotManager

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        settings = SharedEngineSettings()
        self._scratch = settings.run_dir
        self._names: dict[int, str] = {}
        self._known_zeroed: set[int] = set()  # free slots that were looked at since their last use
        self._table: ResidencyTable[Any] = ResidencyTable(slots=self.lora_config.max_loras)
        self._server = LoaderServer(self._table, settings.run_dir, self.load, loaders=settings.engine_loader_threads)

    def create_lora_manager(self, model: torch.nn.Module, vllm_config: Any) -> Any:
        """Called once, when the base model has been loaded: from here on there are slots to load into."""
        if vllm_config.parallel_config.world_size != 1:
            raise RuntimeError("Tenora's tiers know one worker per engine: start it without tensor parallelism")
        wrapped = super().create_lora_manager(model, vllm_config)
        self._server.start()
        return wrapped

    # In the loader's threads.

    def load(self, name: str, path: str) -> bool:
        """Read, check and merge an adapter while steps go on. Raises one of vLLM's many errors for files it cannot
        use; False when the adapter is no longer wanted.
        """
        started = time.monotonic()
        lora = self._read(name, path)
        self._table.record(name, "memory", _ms_since(started), in_step=False)
        return self._table.stage(name, lora)

    def _read(self, name: str, path: str) -> Any:
        with private_copy(Path(path), digest_of(name), self._scratch) as folder:
            request = LoRARequest(lora_name=name, lora_int_id=_NO_NUMBER, lora_path=str(folder))
            lora = self._load_adapter(request)
            if not PIN_MEMORY:  # pinning has copied them already
                for weights in lora.loras.values():  # out of the file's memory map, so that no step waits for a page
                    weights.lora_a, weights.lora_b = weights.lora_a.clone(), with_ranks_apart(weights.lora_b)
        self._adapter_manager.merge(lora)
        return lora

    # In the step thread.

    def add_adapter(self, lora_request: Any) -> bool:
        """``add_lora`` of the front end: into host memory alone. The slot is taken by the first step that needs it, so
        that nobody's running request loses its own for it.
        """
        if self._adapter_manager.registered(lora_request.lora_int_id) is not None:
            return False
        with gpu_sync_allowed():
            self._register(lora_request, frozenset(), in_step=False)
        return True

    def remove_all_adapters(self) -> None:
        """Also called by vLLM after its warm-up with dummies."""
        super().remove_all_adapters()
        self._names.clear()
        self._note()

    def _apply_adapters(self, lora_requests: set[Any]) -> None:
        manager = self._adapter_manager
        requests = [request for request in lora_requests if request]
        if len(requests) > manager.lora_slots:
            raise RuntimeError(f"a step with {len(requests)} adapters for {manager.lora_slots} slots")
        missing = [request for request in requests if not manager.is_in_slot(request.lora_int_id)]
        for request in requests:  # touched first, so that none of them loses its slot to another of the same step
            manager.touch(request.lora_int_id)
        if missing:
            used_now = {request.lora_name for request in requests}
            for request in missing:
                self._bring_to_slot(request, used_now)
        if self._table.staged_count:
            used_now = {request.lora_name for request in requests}
            self._table.drop_unwanted(used_now)
            self._give_way(used_now)

    def _bring_to_slot(self, request: Any, used_now: AbstractSet[str]) -> None:
        manager, started, name = self._adapter_manager, time.monotonic(), request.lora_name
        full = manager.all_slots_used
        with gpu_sync_allowed():
            try:
                if manager.registered(request.lora_int_id) is None:
                    self._register(request, used_now, in_step=True)
                manager.activate_adapter(request.lora_int_id)
            except Exception as error:  # noqa: BLE001 - raised from a step, it would end the engine for everyone
                _log.error("adapter failed in a step; its slot stays empty", adapter=name, reason=repr(error))
                self._hollow_out(request, used_now)
                self._table.fail(name)
        self._known_zeroed.discard(manager.lora_index_to_id.index(request.lora_int_id))
        self._note(used=name, slot_evictions=int(full))
        self._table.record(name, "slot", _ms_since(started), in_step=True)
        if self._table.has_failed(name):
            self._server.write_now()  # before this step's tokens can leave

    def _register(self, request: Any, used_now: AbstractSet[str], *, in_step: bool) -> None:
        """Put an adapter into host memory, evicting another if need be. Reads the disk only for a request that came
        around the door.
        """
        manager, name = self._adapter_manager, request.lora_name
        if self._table.is_refused(name):
            raise ValueError(f"{name} has been revoked")
        lora = self._table.take(name)
        if lora is None and (known := self._number_of(name)) is not None:
            lora = manager.registered(known)  # the front end had forgotten it and counts it anew
            self._drop(known)
        if lora is None:
            started = time.monotonic()
            lora = self._read(name, request.lora_path)
            if not in_step:  # otherwise it is a part of what the step waits for the slot
                self._table.record(name, "memory", _ms_since(started), in_step=True)
        lora.id = request.lora_int_id
        evicted = self._make_room(used_now)
        manager.add_adapter(lora)
        self._names[lora.id] = name
        self._note(memory_evictions=evicted)

    def _hollow_out(self, request: Any, used_now: AbstractSet[str]) -> None:
        """Give its slot to an adapter that adds nothing."""
        self._drop(request.lora_int_id)
        self._make_room(used_now)
        hollow = LoRAModel(request.lora_int_id, 1, {})
        hollow.tenora_merged = True
        self._adapter_manager.add_adapter(hollow)
        self._names[hollow.id] = request.lora_name
        self._adapter_manager.activate_adapter(hollow.id)

    def _make_room(self, used_now: AbstractSet[str]) -> int:
        """Evict until one more can be registered."""
        evicted = 0
        while len(self._adapter_manager) >= self._adapter_manager.capacity:
            by_name = self._registered_by_name()
            victim = self._table.victim(by_name, used_now, must=True)
            assert victim is not None, "a step uses no more adapters than there are slots, and memory holds as many"
            self._drop(by_name[victim])
            evicted += 1
        return evicted

    def _give_way(self, used_now: AbstractSet[str]) -> None:
        """What is staged counts as host memory: those that nobody uses leave for it. The engine may still use what the
        door has let go, since it hears of a caller's leaving later: the slot of this step is never emptied.
        """
        evicted = 0
        while len(self._adapter_manager) + self._table.staged_count > self._adapter_manager.capacity:
            by_name = self._registered_by_name()
            if (victim := self._table.victim(by_name, used_now, must=False)) is None:
                break
            self._drop(by_name[victim])
            evicted += 1
        if evicted:
            self._note(memory_evictions=evicted)

    def _registered_by_name(self) -> dict[str, int]:
        return {self._names.get(each, f"#{each}"): each for each in self._adapter_manager.oldest_first()}

    def _number_of(self, name: str) -> int | None:
        return next((number for number, each in self._names.items() if each == name), None)

    def _drop(self, number: int) -> None:
        """Out of host memory, and out of its slot, whose tensors vLLM would leave as they are."""
        manager = self._adapter_manager
        slot = manager.lora_index_to_id.index(number) if number in manager.lora_index_to_id else None
        manager.remove_adapter(number)
        if slot is not None:
            manager.zero(slot)
        self._names.pop(number, None)

    def _note(self, *, used: str | None = None, slot_evictions: int = 0, memory_evictions: int = 0) -> None:
        """Tell the table; all of host memory unless it only gave the ``used`` adapter to a slot."""
        manager = self._adapter_manager
        self._table.now_holds(
            slots=tuple(
                None if each is None else self._names.get(each, f"#{each}") for each in manager.lora_index_to_id
            ),
            memory=self._registered_by_name() if used is None else None,
            used=used,
            slot_evictions=slot_evictions,
            memory_evictions=memory_evictions,
        )

    # Asked by the front end between two steps, through ``WorkerExtension``.

    def truth(self) -> dict[str, Any]:
        """What vLLM's own tables and tensors hold: ``slots``, ``memory`` and ``staged``."""
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
        """Remove an adapter from slots, host memory and staging, overwrite what is left in slots, and look again."""
        for number in [number for number, each in self._names.items() if each == name]:
            self._drop(number)
        self._table.forget(name)
        for index, number in enumerate(self._adapter_manager.lora_index_to_id):
            if number is None and index not in self._known_zeroed and not self._adapter_manager.is_zeroed(index):
                self._adapter_manager.zero(index)
        self._note()
        return self.truth()


class WorkerExtension:
    """Methods that the front end's ``collective_rpc`` finds on the worker (``--worker-extension-cls``)."""

    model_runner: Any

    def tenora_inventory(self) -> dict[str, Any]:
        """``LoraManager.truth``."""
        truth: dict[str, Any] = self.model_runner.lora_manager.truth()
        return truth

    def tenora_unload(self, name: str) -> dict[str, Any]:
        """``LoraManager.unload``."""
        truth: dict[str, Any] = self.model_runner.lora_manager.unload(name)
        return truth


def _ms_since(started: float) -> float:
    return (time.monotonic() - started) * 1000


def install() -> None:
    """Make vLLM's model runners use these managers."""
    lora_model_runner_mixin.LRUCacheWorkerLoRAManager = LoraManager
