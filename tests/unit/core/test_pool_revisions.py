"""The digest of a pool revision."""

from core.contracts.pool_revisions import PoolRevision, settings_of
from core.engine_settings import EngineSettings

OF_THE_DEFAULTS = "a0d761fd2e2c77a1db050247182fee74214b956da4c8547502377f23f83583e5"


def revision(**settings) -> PoolRevision:
    return PoolRevision(
        base_model="m", weights="0" * 64, engine="vllm 0.32.0 gpu", settings=settings_of(EngineSettings(**settings))
    )


def test_a_change_of_the_digest_is_announced():
    """A new setting changes every digest: then say so in CHANGELOG.md, as docs/how-to/upgrade-and-roll-back.md does."""
    assert revision().digest == OF_THE_DEFAULTS


def test_every_setting_is_in_the_digest_and_their_order_is_not():
    assert revision(engine_slots=9).digest != OF_THE_DEFAULTS
    turned = dict(reversed(revision().settings.items()))
    assert PoolRevision(base_model="m", weights="0" * 64, engine="vllm 0.32.0 gpu", settings=turned).digest == (
        OF_THE_DEFAULTS
    )
