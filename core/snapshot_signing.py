"""Signs the published snapshot, so that a writer of Redis can neither add a tenant nor bring a revoked key back.

The control plane's worker signs each change, and with every publication a root: the position, the time, and a digest of
everything that is published. Gateways and replicas verify both with the public key. What a signature cannot prevent is
that a writer of Redis removes the snapshot or holds changes back.

The digest is of a set, so one change costs the same however much is published: LtHash16, the sum in 1,024 lanes of 16
bits of the SHAKE-256 of each entry (Lewi et al., "Securing Update Propagation with Homomorphic Hashing", 2019).
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Final, Literal, Self

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from core.contracts.snapshots import SnapshotKind
from core.errors import Unavailable

SET_HASH_BYTES: Final = 2048
KEY_BYTES: Final = 32
_LANES: Final = SET_HASH_BYTES // 2
_HIGH: Final = int.from_bytes(b"\x80\x00" * _LANES)
_LOW: Final = int.from_bytes(b"\x7f\xff" * _LANES)

Purpose = Literal["change", "root"]


class ForgedSnapshot(Unavailable):
    """Redis has a snapshot or a change that the control plane did not sign, or an older one than this machine knows."""

    default_code = "snapshot_forged"


class SnapshotRoot(msgspec.Struct, frozen=True, kw_only=True):
    """All that is published at one position. ``digests`` are hexadecimal, by kind; a newer control plane has kinds that
    this version does not know.
    """

    epoch: str
    generation: int
    published_at_ms: int
    digests: Mapping[str, str]


class SetHash:
    """The hash of a set of entries, from which single entries can be removed."""

    def __init__(self, state: bytes = bytes(SET_HASH_BYTES)) -> None:
        self._sum = int.from_bytes(state)

    def add(self, field: str, value: bytes) -> None:
        """Add an entry that the set does not have."""
        new = _entry(field, value)
        self._sum = ((self._sum & _LOW) + (new & _LOW)) ^ ((self._sum ^ new) & _HIGH)

    def remove(self, field: str, value: bytes) -> None:
        """Remove an entry that the set has."""
        old = _entry(field, value)
        self._sum = ((self._sum | _HIGH) - (old & _LOW)) ^ ((self._sum ^ ~old) & _HIGH)

    @property
    def state(self) -> bytes:
        """``SET_HASH_BYTES`` from which the hash can go on."""
        return self._sum.to_bytes(SET_HASH_BYTES)

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of the state."""
        return hashlib.sha256(self.state).hexdigest()


def _entry(field: str, value: bytes) -> int:
    name = field.encode()
    return int.from_bytes(hashlib.shake_256(b"%d:" % len(name) + name + value).digest(SET_HASH_BYTES))


class SnapshotSigner:
    """Signs with an Ed25519 key, given as 32 bytes in base64. Raises ValueError for another key."""

    def __init__(self, private_key: str) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(_key_bytes(private_key))

    @classmethod
    def new(cls) -> Self:
        """A signer with a new key."""
        return cls(base64.b64encode(Ed25519PrivateKey.generate().private_bytes_raw()).decode())

    @property
    def private_key(self) -> str:
        return base64.b64encode(self._key.private_bytes_raw()).decode()

    @property
    def public_key(self) -> str:
        return base64.b64encode(self._key.public_key().public_bytes_raw()).decode()

    def sign(self, purpose: Purpose, content: bytes) -> bytes:
        """The signature of ``content`` for this purpose, 64 bytes."""
        return self._key.sign(_signed(purpose, content))


class SnapshotVerifier:
    """Verifies with Ed25519 public keys in base64, separated by commas: two while the key is rotated. Raises ValueError
    for something else.
    """

    def __init__(self, public_keys: str) -> None:
        self._keys = [Ed25519PublicKey.from_public_bytes(_key_bytes(each)) for each in public_keys.split(",")]

    def verify(self, purpose: Purpose, content: bytes, signature: bytes) -> None:
        """Raises ForgedSnapshot unless one of the keys has signed ``content`` for this purpose."""
        for key in self._keys:
            try:
                return key.verify(signature, _signed(purpose, content))
            except InvalidSignature:
                continue
        raise ForgedSnapshot(f"the {purpose} has no valid signature")


def read_root(verifier: SnapshotVerifier, root: bytes | None, signature: bytes | None) -> SnapshotRoot:
    """The verified root. Raises ForgedSnapshot."""
    if root is None or signature is None:
        raise ForgedSnapshot("the snapshot has no signature")
    verifier.verify("root", root, signature)
    return msgspec.json.decode(root, type=SnapshotRoot)


def check_digest(root: SnapshotRoot, kind: SnapshotKind, found: SetHash) -> None:
    """Raises ForgedSnapshot unless ``found`` is the hash of what the root says of this kind."""
    if root.digests.get(kind, SetHash().digest) != found.digest:
        raise ForgedSnapshot(f"the published {kind} are not those that were signed")


def _signed(purpose: Purpose, content: bytes) -> bytes:
    return b"tenora snapshot " + purpose.encode() + b"\0" + content


def _key_bytes(text: str) -> bytes:
    try:
        raw = base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        raw = b""
    if len(raw) != KEY_BYTES:
        raise ValueError("a key is 32 bytes in base64; `python -m control_plane signing-key` makes a pair")
    return raw
