"""What an upload may be: the limits of the tenant's plan and the bounds of the platform. Loads no numpy, which only the
process that validates needs.
"""

import msgspec

from adapters.safetensors_header import HeaderBounds


class UploadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the tenant's plan allows: LoRA rank, and bytes of all files of one revision together."""

    plan_name: str
    rank_max: int
    bytes_max: int

    def too_large(self, total_bytes: int) -> str:
        """The message that refuses files of ``total_bytes``: the size, the plan's limit and the fix."""
        return (
            f'the files have {total_bytes} bytes in all; plan "{self.plan_name}" allows {self.bytes_max}: '
            "train with a lower rank or on fewer modules, or change the plan"
        )


class WeightBounds(msgspec.Struct, frozen=True, kw_only=True):
    """``magnitude`` bounds each weight; ``update_norm`` bounds |A|·|B|·scaling of a module, which is at least the norm
    of what the adapter adds to the base's matrix. Trained adapters stay three orders of magnitude below both.
    """

    magnitude: float = 1e4
    update_norm: float = 1e5


class PlatformBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The platform's bounds, which apply to every plan."""

    header: HeaderBounds = HeaderBounds()
    weights: WeightBounds = WeightBounds()
