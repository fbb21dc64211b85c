"""The manifest of an accepted adapter: base model, rank, targets and files. Its digest is the revision's digest.

Nothing here reads weights; ``adapters.validation.normalize`` creates the manifest of the files that it wrote.
"""

import hashlib
import re
from typing import Final

import msgspec

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
MANIFEST_FILE: Final = "manifest.json"
MANIFEST_BYTES_MAX: Final = 256 * 1024  # target_modules may hold one literal name per layer and module

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class ManifestDamaged(ValueError):
    """The bytes are not the manifest of the requested digest."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file: of an upload, as it was declared, of a revision, or of a base model's weights."""

    path: str
    size_bytes: int
    sha256: str


class AdapterManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An accepted adapter. ``files`` are the two that an engine reads, in the order of their names."""

    base_model: str
    rank: int
    alpha: int | float
    use_rslora: bool
    target_modules: tuple[str, ...]
    tensor_count: int
    files: tuple[StoredFile, ...]
    version: int = 1

    @property
    def size_bytes(self) -> int:
        """Total size of the adapter's files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def digest(self) -> str:
        """64 hex digits that name this content everywhere: SHA-256 of the canonical JSON."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def to_json(self) -> bytes:
        """Canonical: sorted keys, no spaces. Equal manifests give equal bytes, on every machine."""
        return msgspec.json.encode(self, order="sorted")


def is_digest(text: str) -> bool:
    """Whether ``text`` has the shape of a digest, and so may be a path component."""
    return _DIGEST.fullmatch(text) is not None


def read_manifest(text: bytes, digest: str) -> AdapterManifest:
    """The manifest stored under ``digest``. Raises ``ManifestDamaged`` for any other bytes: fails closed."""
    if hashlib.sha256(text).hexdigest() != digest:
        raise ManifestDamaged(f"the manifest under {digest} has other bytes than its digest says")
    try:
        manifest = msgspec.json.decode(text, type=AdapterManifest)
    except msgspec.DecodeError as error:
        raise ManifestDamaged(f"the manifest under {digest} cannot be read: {error}") from error
    if tuple(file.path for file in manifest.files) != (CONFIG_FILE, WEIGHTS_FILE):
        raise ManifestDamaged(f"the manifest under {digest} names other files than an engine reads")
    return manifest


def sha256_of(path: str, chunk_bytes: int = 1 << 20) -> tuple[int, str]:
    """Size and SHA-256 of a file, read in chunks."""
    hasher, size = hashlib.sha256(), 0
    with open(path, "rb") as stream:  # noqa: PTH123 - also called with paths that came from os.scandir
        while chunk := stream.read(chunk_bytes):
            hasher.update(chunk)
            size += len(chunk)
    return size, hasher.hexdigest()
