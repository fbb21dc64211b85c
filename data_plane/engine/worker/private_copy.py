"""A verified copy of an adapter's two files for the duration of one load.

safetensors maps files into memory, and a mapped file that is truncated kills the process that reads it. No other
process knows this copy.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adapters.manifest import MANIFEST_FILE, ManifestDamaged, StoredFile, read_manifest

_CHUNK_BYTES = 1 << 20


@contextmanager
def private_copy(folder: Path, digest: str, scratch: Path) -> Iterator[Path]:
    """A folder under ``scratch`` with the files of ``folder``. It is deleted at the end of the block.

    Raises ``OSError`` when a file cannot be read or written, ``ManifestDamaged`` when the bytes differ from ``digest``.
    """
    manifest = read_manifest((folder / MANIFEST_FILE).read_bytes(), digest)
    scratch.mkdir(parents=True, exist_ok=True)
    copy = Path(tempfile.mkdtemp(prefix="load-", dir=scratch))
    try:
        for file in manifest.files:
            _copy(folder / file.path, copy / file.path, file)
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _copy(source: Path, target: Path, expected: StoredFile) -> None:
    hasher, size = hashlib.sha256(), 0
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(_CHUNK_BYTES):
            size += len(chunk)
            if size > expected.size_bytes:
                break
            hasher.update(chunk)
            writer.write(chunk)
    if (size, hasher.hexdigest()) != (expected.size_bytes, expected.sha256):
        raise ManifestDamaged(f"{source.name} does not match its manifest")
