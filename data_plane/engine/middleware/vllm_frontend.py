"""vLLM's own front end (0.32) as the middleware uses it: the adapter names that it knows, its calls to the worker, its
prefix cache.

It is reached through the application's state, so that this module does not import vLLM.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from core.contracts.usage import AbortedPrefill
from data_plane.engine import engine_ids
from data_plane.engine.control_protocol import EngineInventory


class VllmFrontend:
    """``state`` is the state of vLLM's FastAPI application."""

    def __init__(self, state: Any) -> None:
        self._client = state.engine_client
        self._models = state.openai_serving_models

    @property
    def names(self) -> frozenset[str]:
        """Engine names that vLLM has resolved, whatever tier the adapters are in."""
        return frozenset(self._models.lora_requests)

    async def register(self, name: str) -> bool:
        """Make the worker register staged weights now instead of in a step. False when vLLM refuses the adapter."""
        if (request := self._models.lora_requests.get(name)) is not None:
            await self._client.add_lora(request)
            return True
        resolved = await self._models.resolve_lora(name)
        return getattr(resolved, "lora_name", None) == name  # otherwise it is an error response

    def evict(self, name: str) -> None:
        """Drop a name that is in no tier. vLLM keeps every name and a lock for it without limit. The next request gives
        the name a new number.
        """
        self._models.lora_requests.pop(name, None)
        if (lock := self._models.lora_resolver_lock.get(name)) is not None and not lock.locked():
            del self._models.lora_resolver_lock[name]

    async def inventory(self) -> EngineInventory:
        """Ask the worker, between two steps, what its tables and tensors hold."""
        (answer,) = await self._client.collective_rpc("tenora_inventory")
        return msgspec.convert(answer, EngineInventory)

    async def unload(self, name: str) -> EngineInventory:
        """Remove an adapter from slots and host memory, overwrite free slots, and return the inventory after that."""
        (answer,) = await self._client.collective_rpc("tenora_unload", args=(name,))
        return msgspec.convert(answer, EngineInventory)

    async def abort(self, request_ids: frozenset[str]) -> None:
        """Abort requests now. Their streams end in the ordinary way, with their final token counts."""
        await self._client.abort(sorted(engine_ids.prompts_of(request_ids)))

    def sequences(self, request_id: str) -> list[str]:
        """VLLM's internal ids of a request's sequences; none for a request that vLLM does not run."""
        known = self._client.output_processor.external_req_ids
        return [each for vllm_id in engine_ids.prompts_of([request_id]) for each in known.get(vllm_id, ())]

    def watch_sequences(self, added: Callable[[str, Any], None]) -> None:
        """Call ``added`` with the id of the request and vLLM's state of each sequence that starts from now on. vLLM
        has no hook for it. A state stays what it was at the sequence's end as long as somebody holds it.
        """
        processor = self._client.output_processor
        add_request = processor.add_request

        def watched(request: Any, *arguments: Any, **options: Any) -> None:
            add_request(request, *arguments, **options)
            if (state := processor.request_states.get(request.request_id)) is not None:
                added(engine_ids.request_of(state.external_req_id), state)

        processor.add_request = watched

    def is_prefilling(self, sequence: str) -> bool:
        """Whether vLLM runs the sequence and has not counted its first token yet, nor its prompt."""
        state = self._client.output_processor.request_states.get(sequence)
        return state is not None and bool(state.is_prefilling)

    async def abort_in_core(self, sequences: list[str]) -> dict[str, AbortedPrefill | None]:
        """Abort sequences in EngineCore, between two steps, and report the progress of their prefills. None for a
        sequence that had ended. ``abort_sequences`` must follow, or their streams never end.
        """
        progress = await self._client.engine_core.call_utility_async("tenora_abort", sequences)
        return dict(zip(sequences, msgspec.convert(progress, list[AbortedPrefill | None]), strict=True))

    async def abort_sequences(self, sequences: list[str]) -> None:
        """End the streams of sequences that EngineCore has aborted. Runs to the abort without a pause."""
        await self._client.abort(sequences, internal=True)

    async def drop_prefix_cache(self) -> None:
        """Clear the prefix cache. Running requests are computed again from their start and continue."""
        await self._client.reset_prefix_cache(reset_running_requests=True)
