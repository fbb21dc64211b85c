"""What a manifest from the confined child must say before the parent believes it.

The child has read untrusted bytes, so a defect there may let them speak through it. The parent knows the base model and
the plan, and hashes the files itself; it trusts the child with nothing else.
"""

import math
from typing import Final

from adapters.base_model_spec import LINEAR_KINDS, BaseModelSpec
from adapters.manifest import CONFIG_FILE, WEIGHTS_FILE, AdapterManifest, is_digest
from adapters.validation.bounds import UploadLimits

_VERSION: Final = 1
_OVERHEAD_BYTES: Final = 1 << 20
"""A normalized file may be larger than the uploaded one by its header."""


def find_impossible(manifest: AdapterManifest, base: BaseModelSpec, limits: UploadLimits) -> str | None:
    """The first statement that cannot be true of an adapter for this base model and plan, or None."""
    targets, largest = set(manifest.target_modules), limits.bytes_max + _OVERHEAD_BYTES
    checks = {
        "version": manifest.version == _VERSION,
        "base model": manifest.base_model == base.id,
        "names": tuple(file.path for file in manifest.files) == (CONFIG_FILE, WEIGHTS_FILE),
        "hashes": all(is_digest(file.sha256) for file in manifest.files),
        "sizes": all(file.size_bytes > 0 for file in manifest.files) and manifest.size_bytes <= largest,
        "rank": 1 <= manifest.rank <= min(limits.rank_max, base.rank_max),
        "alpha": math.isfinite(manifest.alpha) and manifest.alpha > 0,
        "modules": bool(targets) and targets <= base.modules.keys() | set(LINEAR_KINDS),
        "tensors": 2 <= manifest.tensor_count <= 2 * len(base.modules),
    }
    return next((name for name, possible in checks.items() if not possible), None)
