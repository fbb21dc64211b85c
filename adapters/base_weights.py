"""The weights of base models by digest: in a folder, in the object store, and in a cache on a machine's disk.

A checkpoint's digest covers every file that an engine reads. Weights are stored once for each digest, and the replicas
of a machine share one copy. The cache has a budget of its own: adapters and base models never evict one another.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from adapters.cache.cache_folder import make_durable
from adapters.cache.file_locks import LockTimeout, locked
from adapters.manifest import StoredFile, is_digest, sha256_of
from adapters.object_store.download_progress import Download
from adapters.object_store.revision_store import RevisionStore
from adapters.object_store.s3 import ObjectDamaged, ObjectMissing, base64_of, translated
from core.errors import InvalidRequest, Unavailable

_PREFIX: Final = "base_models/"
_LIST: Final = "files.json"  # written last
_LIST_BYTES_MAX: Final = 1 << 20
_INCOMING: Final = ".incoming"
_VERIFIED: Final = ".verified.json"
_EVICTING: Final = "evicting.lock"
_LOCK_TIMEOUT_S: Final = 3600  # another replica of this machine downloads the same weights


class WeightFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of a checkpoint, by path. Hidden files belong to no checkpoint."""

    files: tuple[StoredFile, ...]

    @property
    def digest(self) -> str:
        """64 hex digits that name these weights everywhere."""
        return hashlib.sha256(self.to_json()).hexdigest()

    @property
    def size_bytes(self) -> int:
        """Total size of the files."""
        return sum(file.size_bytes for file in self.files)

    def to_json(self) -> bytes:
        """Canonical: equal files give equal bytes."""
        return msgspec.json.encode(self, order="sorted")


def read_weights(folder: Path) -> WeightFiles:
    """The files of a checkpoint's folder; reads all of them. Raises InvalidRequest for a folder without weights, and
    for one with folders, which an engine might read.
    """
    if inner := [path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]:
        raise InvalidRequest(f"{folder} has the folder {inner[0]}; a checkpoint's files must be beside one another")
    paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not any(path.suffix == ".safetensors" for path in paths):
        raise InvalidRequest(f"{folder} has no weights; it must hold a checkpoint with .safetensors files")
    files = []
    for path in paths:
        size, sha256 = sha256_of(str(path))
        files.append(StoredFile(path=path.name, size_bytes=size, sha256=sha256))
    return WeightFiles(files=tuple(files))


class WeightStore:
    """Base weights in the bucket of ``store``. Every call blocks."""

    def __init__(self, store: RevisionStore) -> None:
        self._store = store

    def put(self, folder: Path, weights: WeightFiles, progress: Callable[[int], None]) -> None:
        """Store a checkpoint under its digest; files that are there already are not sent again, so that it can be
        repeated after an interruption. ``progress`` gets the bytes of each part sent. Raises Unavailable, and
        InvalidRequest when a file changes meanwhile; then nothing is complete.
        """
        bucket = self._store.bucket
        for file in weights.files:
            key = _key(weights.digest, file.path)
            if bucket.head(key) == file.size_bytes:
                progress(file.size_bytes)
                continue
            with translated(key):
                bucket.upload(folder / file.path, key, progress)
        if read_weights(folder) != weights:
            bucket.delete_prefix(_key(weights.digest, ""))
            raise InvalidRequest(f"a file of {folder} has changed while it was sent; send it again")
        with translated(_PREFIX):
            bucket.client.put_object(
                Bucket=bucket.name,
                Key=_key(weights.digest, _LIST),
                Body=weights.to_json(),
                ChecksumSHA256=base64_of(weights.digest),
            )

    def files_of(self, digest: str, path: Path) -> WeightFiles:
        """What is stored under a digest; its list is also written to ``path``. Raises ObjectMissing, ObjectDamaged,
        Unavailable.
        """
        self._store.download(_key(digest, _LIST), path, bytes_max=_LIST_BYTES_MAX, sha256=digest)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=WeightFiles)
        except msgspec.DecodeError as error:
            raise ObjectDamaged(f"the list of base weights {digest} cannot be read: {error}") from error
        if any(Path(file.path).name != file.path or file.path.startswith(".") for file in found.files):
            raise ObjectDamaged(f"the list of base weights {digest} names files outside its folder")
        return found

    def download(self, digest: str, file: StoredFile, path: Path, download: Download) -> None:
        """Write one file to ``path``. Raises as ``RevisionStore.download_object`` does."""
        self._store.download_object(_key(digest, file.path), file, path, download)


class WeightCache:
    """Base weights on this machine's disk: ``<root>/<digest>/``. Its processes share the folder."""

    def __init__(self, root: Path, *, bytes_max: int) -> None:
        self._root = root.absolute()
        self._bytes_max = bytes_max

    @contextmanager
    def held(self, digest: str, store: WeightStore, download: Download) -> Iterator[Path]:
        """The folder of these weights, downloaded if need be, verified, and kept while the block runs. Raises
        ObjectMissing; ObjectDamaged; Unavailable when the store or the disk fails, the budget is too small or the
        ``download`` is stopped.
        """
        if not is_digest(digest):
            raise ValueError(f"{digest!r} is no digest")
        folder = self._root / digest
        with ExitStack() as held:
            with _disk_errors(digest, self._root):
                self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
                lease = held.enter_context((self._root / f"{digest}.lease").open("a"))
                fcntl.flock(lease, fcntl.LOCK_SH)  # no process evicts these weights from now on
                with locked(self._lock(digest), timeout_s=_LOCK_TIMEOUT_S, stop=download.stop):
                    if not _is_verified(folder, digest):
                        self._fetch(digest, folder, store, download)
            try:
                yield folder
            finally:
                with suppress(OSError):
                    os.utime(folder)  # the time of its last use

    def _lock(self, digest: str) -> Path:
        return self._root / f"{digest}.lock"

    def _fetch(self, digest: str, folder: Path, store: WeightStore, download: Download) -> None:
        incoming = self._root / _INCOMING / digest
        incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            wanted = store.files_of(digest, incoming / ".files.json")
        except ObjectMissing as error:
            raise ObjectMissing(
                f"there are no base weights {digest} in the object store; send them with `tenora base-models push`"
            ) from error
        download.total_bytes = wanted.size_bytes
        missing = [file for file in wanted.files if not _is_same(incoming / file.path, file)]  # not all, if it resumes
        with locked(self._root / _EVICTING, timeout_s=_LOCK_TIMEOUT_S, stop=download.stop):
            self._evict_for(wanted.size_bytes, digest)
            for file in missing:  # their size counts from now on
                with (incoming / file.path).open("ab") as out:
                    out.truncate(file.size_bytes)
        for file in missing:
            store.download(digest, file, incoming / file.path, download)
        (incoming / _VERIFIED).write_bytes(msgspec.json.encode(_marks(incoming)))
        for path in (*incoming.iterdir(), incoming):  # after a power cut, what is marked as verified is there
            make_durable(path)
        shutil.rmtree(folder, ignore_errors=True)
        incoming.rename(folder)
        make_durable(self._root)

    def _evict_for(self, needed_bytes: int, digest: str) -> None:
        """Remove unfinished downloads of dead processes, and the weights that were unused for longest until these fit
        the budget. Raises Unavailable when those that replicas use or download leave too little room.
        """
        for left in (self._root / _INCOMING).iterdir():
            if left.name != digest:
                with suppress(LockTimeout), locked(self._lock(left.name), timeout_s=0):
                    shutil.rmtree(left)
        loading = [path for path in (self._root / _INCOMING).iterdir() if path.name != digest]
        others = [path for path in self._root.iterdir() if is_digest(path.name) and path.name != digest]
        sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in (*others, *loading)}
        for path in sorted(others, key=lambda path: path.stat().st_mtime_ns):
            if sum(sizes.values()) + needed_bytes <= self._bytes_max:
                return
            with (self._root / f"{path.name}.lease").open("a") as lease, suppress(BlockingIOError):
                fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
                del sizes[path]
        if (used := sum(sizes.values())) + needed_bytes > self._bytes_max:
            raise Unavailable(
                f"base weights {digest} have {needed_bytes} bytes, and those that replicas of this machine use have "
                f"{used}; raise TENORA_MODEL_CACHE_BYTES above {used + needed_bytes}",
                code="model_cache_full",
            )


@contextmanager
def _disk_errors(digest: str, root: Path) -> Iterator[None]:
    try:
        yield
    except LockTimeout as error:
        raise Unavailable(
            f"another process of this machine still downloads base weights {digest}", code="model_cache_busy"
        ) from error
    except OSError as error:
        raise Unavailable(
            f"the disk failed for base weights {digest}: {error.strerror or error}; give TENORA_MODEL_CACHE_DIR, "
            f"{root}, more space, or repair its disk",
            code="model_cache_failed",
        ) from error


def _is_same(path: Path, file: StoredFile) -> bool:
    return path.exists() and sha256_of(str(path)) == (file.size_bytes, file.sha256)


def _key(digest: str, path: str) -> str:
    return f"{_PREFIX}{digest}/{path}"


def _marks(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, size and modification time of each file: where they are equal, no file has changed."""
    return {
        path.name: (status.st_ino, status.st_size, status.st_mtime_ns)
        for path in sorted(folder.iterdir())
        if not path.name.startswith(".")
        for status in (path.stat(),)
    }


def _is_verified(folder: Path, digest: str) -> bool:
    """Whether the folder holds these weights. Reads them only if a file has changed since they were verified."""
    try:
        mark = folder / _VERIFIED
        if mark.exists() and msgspec.json.decode(mark.read_bytes(), type=dict[str, tuple[int, int, int]]) == _marks(
            folder
        ):
            return True
        return read_weights(folder).digest == digest
    except (OSError, msgspec.DecodeError, InvalidRequest):
        return False
