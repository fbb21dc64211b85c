"""What every replica of a pool runs: base model, weights, engine and engine settings. A revision never changes.

The control plane stores revisions, and a replica computes the digest of what it is about to run. It starts only when
the two are equal, so its placer need not be trusted.
"""

import hashlib

import msgspec

from core.engine_settings import EngineSettings


class PoolRevision(msgspec.Struct, frozen=True, kw_only=True):
    """``weights`` is the digest of the base model's files (``adapters.base_weights``), ``engine`` the engine's name and
    version, such as "vllm 0.32.0 cpu". ``settings`` are all of ``EngineSettings``, so that a new default changes no
    stored revision.
    """

    base_model: str
    weights: str
    engine: str
    settings: dict[str, int | str]

    @property
    def digest(self) -> str:
        """64 hex digits: SHA-256 of the canonical JSON."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


def settings_of(given: EngineSettings) -> dict[str, int | str]:
    """The engine's part of ``given``, which may be the settings of a whole replica."""
    return given.model_dump(include=set(EngineSettings.model_fields))
