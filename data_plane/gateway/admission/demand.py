"""What a request needs of the platform at most, once it has been read, resolved and counted. Who gives it a place is
admission's business.
"""

import msgspec

from core import kv_pages
from core.contracts.grants import Limits
from data_plane.gateway.quota.allowance import Allowance
from data_plane.gateway.scheduling.placement import Wish


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt and ``max_tokens`` for each of its ``sequences``, of which as few as ``min_tokens`` may be granted;
    ``rank`` is that of its adapter (0 for a base model), and ``affinity`` its session or prefix ("" for none). Whether
    it is a ``stream`` decides whether anybody will know when its prompt has been read.
    """

    request_id: str
    limits: Limits
    allowance: Allowance
    base_model: str
    engine_name: str
    sequences: int
    prompt_tokens: int
    max_tokens: int
    min_tokens: int
    rank: int = 0
    affinity: str = ""
    stream: bool = True

    @property
    def tenant_id(self) -> str:
        return self.allowance.tenant_id

    @property
    def sequence_tokens(self) -> int:
        return self.prompt_tokens + self.max_tokens

    @property
    def tokens(self) -> int:
        return self.sequences * self.sequence_tokens

    @property
    def input_tokens(self) -> int:
        return self.sequences * self.prompt_tokens

    @property
    def output_tokens(self) -> int:
        return self.sequences * self.max_tokens

    def pages(self, block_tokens: int) -> int:
        """KV pages it may take at most on an engine with blocks of this size."""
        return self.sequences * kv_pages.pages_for(self.sequence_tokens, block_tokens)

    def wish(self, *, headroom: bool = True, overdue: bool = False, failed_by: frozenset[str] = frozenset()) -> Wish:
        """What of it matters to placement."""
        return Wish(
            base_model=self.base_model,
            engine_name=self.engine_name,
            sequences=self.sequences,
            sequence_tokens=self.sequence_tokens,
            prompt_tokens=self.prompt_tokens,
            rank=self.rank,
            affinity=self.affinity,
            headroom=headroom,
            overdue=overdue,
            failed_by=failed_by,
        )
