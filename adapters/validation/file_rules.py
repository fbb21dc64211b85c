"""Which files an upload may contain: checked by name before the download and by their first bytes after it.

An adapter is two files. Other files that training leaves get a note and are ignored. Files that could run code or
change how prompts are built are refused.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from adapters.manifest import CONFIG_FILE, WEIGHTS_FILE
from adapters.report import Code, ReportBuilder
from adapters.safetensors_header import NOT_GATHERED
from adapters.validation.foreign_names import EXTRACT, FROM_MLX
from core.strict_json import shorten

REQUIRED_FILES: Final = (CONFIG_FILE, WEIGHTS_FILE)

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\-]{0,127}")
_PASSED_OVER: Final = re.compile(
    r".+\.(md|txt|log|csv|tsv|jsonl|ya?ml|png|jpe?g|svg|pdf)|\.gitattributes|\.gitignore|\.DS_Store|latest|"
    r"(LICEN[CS]E|NOTICE)([-_][\w-]+)?(\.rst)?|events\.out\.tfevents\..+|"
    r"(trainer_state|(all|train|eval|predict)_results|training_args|generation_config)\.json",
    re.IGNORECASE,
)
_PROMPT_FILES: Final = re.compile(
    r"(tokenizer|vocab|merges|added_tokens|special_tokens|chat_template|spiece|sentencepiece).*|.+\.jinja2?|.+\.model",
    re.IGNORECASE,
)
_SUFFIXES: Final[dict[str, tuple[Code, str]]] = {
    **dict.fromkeys(
        (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".npz", ".joblib", ".h5", ".gguf"),
        (
            "format_not_allowed",
            "other formats are never read; leave it out (weights: save_pretrained(safe_serialization=True))",
        ),
    ),
    **dict.fromkeys(
        (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar"),
        ("archive_not_allowed", f"archives are not unpacked; upload {CONFIG_FILE} and {WEIGHTS_FILE} themselves"),
    ),
}
# What trainers and converters leave instead of an adapter. The first pattern that a file's name has decides.
_INSTEAD: Final[tuple[tuple[str, str], ...]] = (
    (r"adapters\.safetensors|\d+_adapters\.safetensors", f"is of MLX's format: {FROM_MLX}"),
    (
        r"adapter_model\.(bin|pt|pth)",
        "is a pickle, which is never read: save with save_pretrained(safe_serialization=True)",
    ),
    (
        r"adapter_model(-\d+-of-\d+\.safetensors|\.safetensors\.index\.json)",
        "is one of several parts: join them in one file",
    ),
    (r"pytorch_lora_weights\..+", "is of diffusers: only adapters of language models are served"),
    (r".+\.gguf", "cannot be converted back: upload the PEFT adapter that it was made from"),
    (r"global_step\d+|zero_to_fp32\.py|.+_optim_states\.pt", f"is of a DeepSpeed checkpoint: {NOT_GATHERED}"),
    (r"pytorch_model_fsdp.*|.+\.distcp", "is of a sharded FSDP checkpoint: save with FULL_STATE_DICT"),
    (r"(model|pytorch_model|consolidated).*\.(safetensors|bin|pth?|json)", f"is of a full model: {EXTRACT}"),
)


_MAGIC: Final[tuple[tuple[int, bytes, Code, str], ...]] = (
    (0, b"PK\x03\x04", "format_not_allowed", "is a zip or a PyTorch file"),
    (0, b"PK\x05\x06", "archive_not_allowed", "is an empty zip"),
    (0, b"\x80\x02", "format_not_allowed", "is a pickle"),
    (0, b"\x80\x03", "format_not_allowed", "is a pickle"),
    (0, b"\x80\x04", "format_not_allowed", "is a pickle"),
    (0, b"\x80\x05", "format_not_allowed", "is a pickle"),
    (0, b"GGUF", "format_not_allowed", "is a GGUF file"),
    (0, b"\x89HDF", "format_not_allowed", "is an HDF5 file"),
    (0, b"\x93NUMPY", "format_not_allowed", "is a NumPy file"),
    (0, b"\x1f\x8b", "archive_not_allowed", "is a gzip archive"),
    (0, b"BZh", "archive_not_allowed", "is a bzip2 archive"),
    (0, b"\xfd7zXZ", "archive_not_allowed", "is an xz archive"),
    (0, b"\x28\xb5\x2f\xfd", "archive_not_allowed", "is a zstd archive"),
    (0, b"7z\xbc\xaf", "archive_not_allowed", "is a 7z archive"),
    (0, b"Rar!\x1a\x07", "archive_not_allowed", "is a rar archive"),
    (257, b"ustar", "archive_not_allowed", "is a tar archive"),  # behind its first member's name, mode and sizes
)
_MAGIC_END: Final = max(offset + len(magic) for offset, magic, _, _ in _MAGIC)


def check_names(paths: Iterable[str], report: ReportBuilder) -> None:
    """Check the files of an upload by their names only. Adds a note for each ignored file."""
    names = list(paths)
    instead = None
    for name, text in missing_files(names):
        instead = _instead(names)
        report.refuse("file_missing", text, file=name)
    for name in sorted({name for name in names if names.count(name) > 1}):
        report.refuse("file_not_allowed", "is declared twice; name it once", file=shorten(name).strip('"'))
    for name in sorted(set(names) - set(REQUIRED_FILES)):
        if instead is None or name != instead[0]:
            _check_extra(name, report)


def missing_files(names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Each of the two files that is missing, and what the other names say about the reason."""
    for name in REQUIRED_FILES:
        if name not in names:
            found = _instead(names)
            hint = f"; {found[0]} {found[1]}" if found else ""
            yield name, f"is missing; a PEFT adapter is {CONFIG_FILE} and {WEIGHTS_FILE}{hint}"


def _instead(names: Collection[str]) -> tuple[str, str] | None:
    for pattern, text in _INSTEAD:
        if found := next((name for name in sorted(names) if re.fullmatch(pattern, name)), None):
            return shorten(found).strip('"'), text
    return None


def check_first_bytes(folder: Path, report: ReportBuilder) -> None:
    """Refuse files whose content differs from their name."""
    for name in REQUIRED_FILES:
        with (folder / name).open("rb") as stream:
            beginning = stream.read(_MAGIC_END)
        for offset, magic, code, what in _MAGIC:
            if beginning.startswith(magic, offset):
                report.refuse(code, f"{what}; save the adapter as safetensors", file=name)


def _check_extra(name: str, report: ReportBuilder) -> None:
    shown = shorten(name).strip('"')
    suffix = Path(name).suffix.lower()
    if not _PLAIN_NAME.fullmatch(name) or name in (".", ".."):
        report.refuse("file_not_allowed", "is not a plain file name; upload the adapter's two files alone", file=shown)
    elif suffix in _SUFFIXES:
        code, fix = _SUFFIXES[suffix]
        report.refuse(code, fix, file=shown)
    elif _PROMPT_FILES.fullmatch(name):
        report.refuse("file_not_allowed", "tokenizer and template come with the base model; leave it out", file=shown)
    elif _PASSED_OVER.fullmatch(name):
        report.note(f"{shown} was passed over: it is no part of an adapter")
    else:
        report.refuse("file_not_allowed", "is no part of an adapter; leave it out", file=shown)
