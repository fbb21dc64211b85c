"""Bad uploads, rows U40 to U49: other files than an adapter's two, and files that are not what was announced."""

import bz2
import gzip
import io
import lzma
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator

from tests.corpus.uploads.item import CONFIG, WEIGHTS, Item

_ANNOUNCE = {"stage": "announce", "status": 400}
_MEDIA = {"stage": "announce", "status": 415}
_BOMB_BYTES = 30_000_000


def _beside(row: str, path: str, code: str, *says: str, content: bytes = b"x", **more: object) -> Item:
    """The good adapter and one more file."""
    shown = more.pop("shown", path)
    return Item(row=row, what=f"beside it {path[:40]!r}", code=code, says=says, files=lambda: {path: content},
                file=shown, **more)  # fmt: skip


def _instead(row: str, what: str, code: str, make: Callable[[], bytes], *says: str, **more: object) -> Item:
    """Something else under the weights' name."""
    return Item(row=row, what=what, code=code, says=says, files=lambda: {WEIGHTS: make()}, **more)


def _zip_of_a_pickle() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(zipfile.ZipInfo("archive/data.pkl"), pickle.dumps({}))  # of 1980, whenever it is made
    return out.getvalue()


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def _hostile_tar() -> bytes:
    """A symbolic link, a hard link, a device and a path that climbs."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind, target in (
            ("link", tarfile.SYMTYPE, "/etc/passwd"), ("hard", tarfile.LNKTYPE, "/etc/passwd"),
            ("device", tarfile.CHRTYPE, ""), ("../../climbs", tarfile.REGTYPE, ""),
        ):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    return out.getvalue()


class _Runs:
    """What a hostile pickle does when it is read."""

    def __reduce__(self) -> tuple:
        return exec, ("raise SystemExit('a pickle was read')",)


def formats() -> Iterator[Item]:
    """U40: pickles and other formats, under their own names and under ours."""
    for path in ("adapter_model.bin", "adapter_model.pt", "weights.pth", "a.PKL", "a.ckpt", "a.npz", "a.h5", "a.gguf"):
        yield _beside("U40", path, "format_not_allowed", "never read", "save_pretrained", **_MEDIA)
    yield Item(row="U40", what="pickled weights alone", code="file_missing", says=("is missing", "PEFT adapter is"),
               files=lambda: {WEIGHTS: None, "adapter_model.bin": pickle.dumps(_Runs())}, **_ANNOUNCE)  # fmt: skip
    fix = "save the adapter as safetensors"
    for protocol in (2, 3, 4, 5):
        yield _instead("U40", f"a pickle of protocol {protocol}", "format_not_allowed",
                       lambda protocol=protocol: pickle.dumps(_Runs(), protocol), "pickle", fix)  # fmt: skip
    for protocol in (0, 1):
        yield _instead(
            "U40",
            f"a pickle of protocol {protocol}",
            "header_too_large",
            lambda protocol=protocol: pickle.dumps(_Runs(), protocol) + bytes(8),
            "save LoRA tensors only",
        )
    yield _instead("U40", "a PyTorch file", "format_not_allowed", _zip_of_a_pickle, "PyTorch", fix)
    for what, magic in {"GGUF": b"GGUF", "HDF5": b"\x89HDF\r\n\x1a\n", "NumPy": b"\x93NUMPY"}.items():
        yield _instead("U40", f"a {what} file", "format_not_allowed", lambda magic=magic: magic + bytes(100), what, fix)
    yield Item(row="U40", what="a pickle for a config", code="format_not_allowed", says=("pickle",), file=CONFIG,
               files=lambda: {CONFIG: pickle.dumps(_Runs())})  # fmt: skip
    yield _instead("U40", "zeros", "header_invalid", lambda: bytes(100), "save the file again")


def extras() -> Iterator[Item]:
    """U41: files that would change prompts or run."""
    for path in (
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "vocab.txt",
        "spiece.model", "x.jinja2",
    ):  # fmt: skip
        yield _beside("U41", path, "file_not_allowed", "come with the base model", "leave it out", **_ANNOUNCE)
    for path in ("modeling_llama.py", "run.sh", "other.safetensors", "config.json", "x", "adapter_config.json.bak"):
        yield _beside("U41", path, "file_not_allowed", "no part of an adapter", "leave it out", **_ANNOUNCE)


def archives() -> Iterator[Item]:
    """U42 to U44: archives are never unpacked, whatever is in them."""
    fix = "upload adapter_config.json and adapter_model.safetensors themselves"
    for path in ("a.zip", "a.tar", "a.tar.gz", "a.tgz", "a.7z", "a.rar", "a.zst"):
        yield _beside("U42", path, "archive_not_allowed", "not unpacked", fix, **_MEDIA)
    yield _beside("U43", "links.tar", "archive_not_allowed", "not unpacked", fix, content=_hostile_tar(), **_MEDIA)
    yield _beside("U44", "42.zip", "archive_not_allowed", "not unpacked", fix, content=b"PK\x03\x04", **_MEDIA)
    again = "save the adapter as safetensors"
    for what, pack in {"gzip": _gzip, "bzip2": bz2.compress, "xz": lzma.compress}.items():
        yield _instead(
            "U42", f"a {what} archive", "archive_not_allowed", lambda pack=pack: pack(bytes(1000)), what, again
        )
    for what, magic in {
        "zstd": b"\x28\xb5\x2f\xfd", "7z": b"7z\xbc\xaf\x27\x1c", "rar": b"Rar!\x1a\x07\x01", "zip": b"PK\x05\x06",
    }.items():  # fmt: skip
        yield _instead("U42", f"a {what} archive", "archive_not_allowed", lambda magic=magic: magic + bytes(90), what,
                       again)  # fmt: skip
    yield _instead("U43", "a tar with links and devices", "archive_not_allowed", _hostile_tar, "tar", again)
    yield _instead("U44", "a gzip bomb", "archive_not_allowed", lambda: _gzip(bytes(_BOMB_BYTES)), "gzip", again)
    yield Item(row="U44", what="a gzip bomb for a config", code="archive_not_allowed", says=("gzip",), file=CONFIG,
               files=lambda: {CONFIG: _gzip(bytes(_BOMB_BYTES))})  # fmt: skip


def _declared(**of_the_weights: object) -> Callable[[list[dict]], list[dict]]:
    """Announce the weights with another size or checksum than they have."""

    def declare(files: list[dict]) -> list[dict]:
        return [file | of_the_weights if file["path"] == WEIGHTS else file for file in files]

    return declare


def promises() -> Iterator[Item]:
    """U45 and U46: not the files that were announced."""
    more = {"declare": _declared(size_bytes=50_000_000), "stage": "announce", "status": 413}
    yield Item(row="U45", what="more than the plan allows", code="upload_too_large", file=None,
               says=("allows 40000000",), **more)  # fmt: skip
    for path in (CONFIG, WEIGHTS):
        yield Item(row="U45", what=f"{path} never sent", code="artifact_missing", withheld=(path,), file=path,
                   stage="complete", status=409, says=("was not uploaded", "PUT it"))  # fmt: skip
    yield Item(row="U46", what="another checksum", code="checksum_mismatch", declare=_declared(sha256="0" * 64),
               says=("not the file that was declared", "create a new revision"))  # fmt: skip


def names() -> Iterator[Item]:
    """Paths that are no plain file names, and lists that are no adapter."""
    for path, shown in (
        ("../adapter_model.safetensors", None), ("a/b.md", None), ("/etc/README.md", None), ("a\0.md", "a\\u0000.md"),
        ("\u202edm.md", "\\u202edm.md"), ("..", None), ("C:\\x.md", "C:\\\\x.md"), ("%2e%2e%2fx.md", None),
        ("x" * 150 + ".md", "x" * 78 + "…"), ("-rf.md", None), ("a b.md", None), ("é.md", "\\u00e9.md"),
    ):  # fmt: skip
        yield _beside(
            "U49", path, "file_not_allowed", "not a plain file name", "alone", shown=shown or path, **_ANNOUNCE
        )
    for path in (CONFIG, WEIGHTS):
        yield Item(row="U49", what=f"no {path}", code="file_missing", says=("is missing", "PEFT adapter is"), file=path,
                   files=lambda path=path: {path: None}, **_ANNOUNCE)  # fmt: skip
    yield Item(row="U49", what="a file twice", code="file_not_allowed", says=("declared twice", "once"),
               declare=lambda files: [*files, files[-1]], **_ANNOUNCE)  # fmt: skip


ITEMS = (*formats(), *extras(), *archives(), *promises(), *names())
