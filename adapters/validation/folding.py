"""Folds an adapter whose modules have different ranks or alphas into one of a single rank and scaling, which is what
vLLM serves.

A is padded with rows of zeros and B with columns of zeros, and B is multiplied by the module's own scaling relative to
the common one. The product scaling·B·A of every module stays the same.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from adapters.validation.config_rules import AdapterConfig
from adapters.validation.tensor_rules import LoraPair


class Folding(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of the served adapter. ``factors`` has the factor of B of each module that needs one."""

    rank: int
    alpha: int | float
    use_rslora: bool
    factors: dict[str, float]

    def factor(self, module: str) -> float:
        """The factor of the module's B."""
        return self.factors.get(module, 1.0)


def fold(config: AdapterConfig, pairs: Sequence[LoraPair]) -> Folding:
    """The common rank is the largest one. The common scaling is the one of the most modules, so that most weights are
    not rounded again. An adapter with one rank and one alpha keeps its own numbers.
    """
    alphas = {config.alpha_of(pair.module) for pair in pairs}
    ranks = {pair.rank for pair in pairs}
    if len(alphas) == 1 and len(ranks) == 1:
        return Folding(rank=ranks.pop(), alpha=alphas.pop(), use_rslora=config.use_rslora, factors={})
    scalings = {pair.module: config.scaling_of(pair.module, pair.rank) for pair in pairs}
    rank = max(ranks)
    common = max(Counter(scalings.values()).items(), key=lambda item: (item[1], item[0]))[0]
    alpha = common * rank
    return Folding(
        rank=rank,
        alpha=int(alpha) if alpha == int(alpha) else alpha,
        use_rslora=False,
        factors={module: scaling / common for module, scaling in scalings.items() if scaling != common},
    )
