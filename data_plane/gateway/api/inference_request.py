"""One inference request after the gateway has read, resolved and counted it: an immutable value that every later step
receives by reference. What a step adds (a reservation, a placement, usage counters) belongs to that step, not here.
"""

from typing import Final

import msgspec

from core import kv_pages
from core.contracts.grants import Limits, ServiceClass, ServiceTier
from core.contracts.routes import GroupRoute
from data_plane.gateway.api.model_catalog import Target
from data_plane.gateway.api.openai_request import Call
from data_plane.gateway.state.authenticate import Caller

BATCH_TIER: Final = 1 << 20
_BATCH_SHARE: Final = "batch "
"""The tier of batch requests in the wait queue: below that of every plan."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Why this member of a group serves a request: the group that its caller named, and the reason. ``rest`` names the
    members to try where this one has no room in time (after ``patience_s``, or, where that is None, as long as other
    requests wait), fails before its first byte, or, in a cascade, where its answer is not kept. ``first_request_id`` is
    the request that failed, or whose answer was not kept.
    """

    group: GroupRoute
    reason: str
    rest: tuple[str, ...] = ()
    patience_s: float | None = None
    first_request_id: str | None = None


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The caller, what it asks for, and the most that the request may take.

    ``limits`` are the tenant's limits, narrowed by the key. The engine knows the model as ``engine_name``. ``prompts``
    are the prompt tokens of each sequence, in the order of the answer's choices: ``n`` sequences for each of the call's
    prompts. Each sequence generates up to ``max_tokens``; where quotas do not allow that
    many, the request accepts a grant of ``min_tokens`` or more. ``affinity`` names the session or the prompt prefix
    ("" for neither). ``service_class`` and ``service_tier`` (of its price) are those that apply, not those that were
    asked for. ``closed_pools`` do not serve it, and ``own_pools`` are its tenant's dedicated ones. ``route`` is None
    where the caller named the model itself. ``arrived_at`` and ``read_at`` (the end of its body) are monotonic seconds.
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
    service_class: ServiceClass = "interactive"
    service_tier: ServiceTier = "default"
    closed_pools: frozenset[str] = frozenset()
    own_pools: frozenset[str] = frozenset()
    route: Route | None = None

    @property
    def is_batch(self) -> bool:
        """Whether the request waits for all that are not batch."""
        return self.service_class == "batch"

    @property
    def tier(self) -> int:
        """The tier in the wait queue; a smaller one goes first. The class counts before the plan's tier."""
        return BATCH_TIER if self.is_batch else self.limits.tier

    @property
    def share_id(self) -> str:
        """Whose share of a pool the request takes: the tenant's. Its batch counts as another tenant's, so that it
        neither waits with its other requests nor takes from their share.
        """
        return f"{_BATCH_SHARE}{self.tenant_id}" if self.is_batch else self.tenant_id

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


def tenant_of_share(share_id: str) -> str:
    """The tenant of a ``share_id``."""
    return share_id.removeprefix(_BATCH_SHARE)
