"""vLLM's own front end (0.32) as the door uses it: the names it knows, its line to the worker, its prefix cache.

Reached through the application's state, so that nothing of vLLM is imported here.
"""

from typing import Any

import msgspec

from data_plane.engine.control_protocol import EngineInventory


class VllmFrontend:
    """``state`` is that of vLLM's FastAPI application."""

    def __init__(self, state: Any) -> None:
        self._client = state.engine_client
        self._models = state.openai_serving_models

    @property
    def names(self) -> frozenset[str]:
        """Engine names that it takes for known, in whatever tier they are."""
        return frozenset(self._models.lora_requests)

    async def register(self, name: str) -> bool:
        """Make the worker take staged weights into its tables now rather than in a step."""
        if (request := self._models.lora_requests.get(name)) is not None:
            await self._client.add_lora(request)
            return True
        resolved = await self._models.resolve_lora(name)
        return getattr(resolved, "lora_name", None) == name  # otherwise it is an error response

    def forget(self, name: str) -> None:
        """Drop a name that is in no tier: vLLM keeps them, and a lock for each, for ever. It gets a new number when it
        is asked for again.
        """
        self._models.lora_requests.pop(name, None)
        if (lock := self._models.lora_resolver_lock.get(name)) is not None and not lock.locked():
            del self._models.lora_resolver_lock[name]

    async def truth(self) -> EngineInventory:
        """Asked of the worker between two steps."""
        (answer,) = await self._client.collective_rpc("tenora_inventory")
        return msgspec.convert(answer, EngineInventory)

    async def unload(self, name: str) -> EngineInventory:
        """Take an adapter out of slots and host memory, overwrite free slots, and look again."""
        (answer,) = await self._client.collective_rpc("tenora_unload", args=(name,))
        return msgspec.convert(answer, EngineInventory)

    async def abort(self, request_ids: frozenset[str]) -> None:
        """End requests now; their streams end in the ordinary way, with their final counts."""
        await self._client.abort(sorted(request_ids))

    async def drop_prefix_cache(self) -> None:
        """Forget all cached prefixes. Running requests are computed again from their start and go on."""
        await self._client.reset_prefix_cache(reset_running_requests=True)
