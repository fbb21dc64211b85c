"""One inference request after the gateway has read, resolved and counted it: an immutable value that every later step
receives by reference. What a step adds (a reservation, a placement, usage counters) belongs to that step, not here.
"""

from typing import Final

import msgspec

from core import kv_pages
from core.contracts.grants import Limits, ServiceTier
from data_plane.gateway.api.model_catalog import Target
from data_plane.gateway.api.openai_request import Call
from data_plane.gateway.state.authenticate import Caller

FLEX_TIER: Final = 1 << 20
"""The tier of flex requests in the wait queue: below that of every plan."""


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The caller, what it asks for, and the most that the request may take.

    ``limits`` are the tenant's limits, narrowed by the key. The engine knows the model as ``engine_name``. ``prompts``
    are the prompt tokens of each sequence, in the order of the answer's choices: ``n`` sequences for each of the call's
    prompts. Each sequence generates up to ``max_tokens``; where quotas do not allow that
    many, the request accepts a grant of ``min_tokens`` or more. ``affinity`` names the session or the prompt prefix
    ("" for neither). ``service_tier`` is the tier that applies, not the one that was asked for. ``arrived_at`` and
    ``read_at`` (the end of its body) are monotonic seconds.
    """

    id: str
    caller: Caller
    limits: Limits
    call: Call
    target: Target
    engine_name: str
    prompts: tuple[int, ...]
    max_tokens: int
    min_tokens: int
    affinity: str = ""
    arrived_at: float = 0.0
    read_at: float = 0.0
    service_tier: ServiceTier = "default"

    @property
    def is_flex(self) -> bool:
        """Whether the request waits for all that are not flex."""
        return self.service_tier == "flex"

    @property
    def tier(self) -> int:
        """The tier in the wait queue; a smaller one goes first."""
        return FLEX_TIER if self.is_flex else self.limits.tier

    @property
    def share_id(self) -> str:
        """Whose share of a pool the request takes: the tenant's. Its flex requests count as another tenant's, so that
        they neither wait with its other requests nor take from their share.
        """
        return f"flex {self.tenant_id}" if self.is_flex else self.tenant_id

    @property
    def shown_tier(self) -> ServiceTier | None:
        """The tier that the answer names; None where the caller named none."""
        return self.service_tier if self.call.service_tier is not None else None

    @property
    def tenant_id(self) -> str:
        """The caller's tenant."""
        return self.caller.tenant.tenant_id

    @property
    def base_model(self) -> str:
        """Id of the base model."""
        return self.target.base.id

    @property
    def adapter(self) -> str:
        """The engine name if an adapter serves the request, else ""."""
        return "" if self.target.adapter is None else self.engine_name

    @property
    def rank(self) -> int:
        """Rank of the adapter; 0 for a base model."""
        return self.target.rank

    @property
    def rank_class(self) -> int | None:
        """The rank class of the adapter's revision; None for a base model."""
        return None if self.target.adapter is None else self.target.adapter.revision.rank_class

    @property
    def sequences(self) -> int:
        """Number of sequences to generate."""
        return len(self.prompts)

    @property
    def tokens(self) -> int:
        """Prompt and output ceiling of all sequences, in tokens."""
        return self.input_tokens + self.output_tokens

    @property
    def input_tokens(self) -> int:
        """Prompt tokens of all sequences."""
        return sum(self.prompts)

    @property
    def output_tokens(self) -> int:
        """Output ceiling of all sequences, in tokens."""
        return len(self.prompts) * self.max_tokens

    def pages(self, block_tokens: int, max_tokens: int | None = None) -> int:
        """The most KV pages that the request may take on an engine with blocks of this size: prompts and outputs, in
        whole blocks. Its sequences generate up to ``max_tokens`` where that is given.
        """
        output = self.max_tokens if max_tokens is None else max_tokens
        pages = 0
        for prompt in self.prompts:
            pages += kv_pages.pages_for(prompt + output, block_tokens)
        return pages
