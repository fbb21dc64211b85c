"""The settings of the keys that sign and verify the published snapshot. Only the processes that use them read them."""

from pydantic import Field, SecretStr, field_validator

from core.errors import InvalidSettings
from core.settings import Fragment
from core.snapshot_signing import SnapshotSigner, SnapshotVerifier


class SnapshotVerifyingSettings(Fragment):
    """With what gateways and replicas verify the published snapshot."""

    snapshot_public_keys: str = Field(
        description="Public keys of the snapshots' signer, in base64, by commas: two while the key is rotated."
    )

    @field_validator("snapshot_public_keys")
    @classmethod
    def _readable(cls, given: str) -> str:
        SnapshotVerifier(given)
        return given

    def verifier(self) -> SnapshotVerifier:
        """The verifier with these keys."""
        return SnapshotVerifier(self.snapshot_public_keys)


class SnapshotSigningSettings(Fragment):
    """With what the control plane's worker signs the published snapshot."""

    snapshot_signing_key: SecretStr | None = Field(
        default=None, description="Private key that signs snapshots, in base64. Only the worker needs it."
    )

    @field_validator("snapshot_signing_key")
    @classmethod
    def _readable(cls, given: SecretStr | None) -> SecretStr | None:
        if given is not None:
            SnapshotSigner(given.get_secret_value())
        return given

    def signer(self) -> SnapshotSigner:
        """The signer with this key. Raises InvalidSettings without one."""
        if self.snapshot_signing_key is None:
            raise InvalidSettings(
                "TENORA_SNAPSHOT_SIGNING_KEY is not set: `python -m control_plane signing-key` makes a pair of keys."
            )
        return SnapshotSigner(self.snapshot_signing_key.get_secret_value())
