"""The type of one item in the corpus of bad uploads, and the good adapter that each item changes in one way.

Files are made when an item is used, from constants and seeded numbers only, so the repository stores nothing large.
"""

import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from tests.fixtures.uploads.peft_adapters import adapter_config, adapter_tensors, safetensors_bytes, tiny_base

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE = tiny_base()
RANK = 4
Q0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"

# The plan that the corpus is judged by: large enough that no item is refused for its size but those made for it.
PLAN = {"adapter_rank": 64, "adapter_bytes": 40_000_000}
OTHER_BASES = ("other-7b", "someone/Other-7B")

Files = Mapping[str, bytes | None]
"""Contents by path, over those of the good adapter; None leaves a file out."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """One bad upload. ``row`` is its place in the table of bad input; ``code``, ``file`` and ``where`` are of a problem
    that the report must hold, and ``says`` are words of its message: what is wrong, and the fix.

    ``stage`` is where the API refuses it, with ``status``. ``declare`` changes what is announced, so that it is not
    what is uploaded; files in ``withheld`` are announced and never sent.
    """

    row: str
    what: str
    code: str
    says: tuple[str, ...]
    files: Callable[[], Files] = dict
    file: str | None = WEIGHTS
    where: str | None = None
    cpu_s: float = 2.0
    stage: Literal["announce", "complete", "validation"] = "validation"
    status: int = 202
    declare: Callable[[list[dict]], list[dict]] | None = None
    withheld: tuple[str, ...] = ()

    def content(self) -> dict[str, bytes]:
        """Every file of the upload by its path."""
        files: dict[str, bytes | None] = {**good_files(), **self.files()}
        return {path: content for path, content in files.items() if content is not None}

    @property
    def is_judged_by_the_child(self) -> bool:
        """Whether the files lie in a folder and are themselves at fault."""
        paths = self.content()
        return (
            self.declare is None
            and not self.withheld
            and all(re.fullmatch(r"(?!\.+$)[^/\0]{1,200}", path) for path in paths)
        )

    def write(self, folder: Path) -> None:
        """The upload as a folder."""
        for path, content in self.content().items():
            (folder / path).write_bytes(content)

    def announcement(self) -> list[dict]:
        """The files that the tenant announces."""
        files = [
            {"path": path, "size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for path, content in self.content().items()
        ]
        return self.declare(files) if self.declare else files


def good_files(**config_changes: object) -> dict[str, bytes]:
    """A small adapter that is accepted."""
    config = adapter_config(BASE, rank=RANK, **config_changes)
    weights = safetensors_bytes(adapter_tensors(BASE, rank=RANK), metadata={"format": "pt"})
    return {CONFIG: json.dumps(config, indent=2).encode(), WEIGHTS: weights}


def weights_file(header: object, body: bytes = b"", *, text: bytes | None = None) -> bytes:
    """A weights file with any header: an object to be written as JSON, or the ``text`` itself."""
    text = json.dumps(header).encode() if text is None else text
    return struct.pack("<Q", len(text)) + text + body


def entry(begin: int, end: int, shape: object, dtype: object = "F32") -> dict:
    """A tensor's entry in a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def of_tensors(tensors: Iterable[tuple[str, str, list[int], bytes]]) -> bytes:
    """A weights file with any tensors (name, dtype, shape and bytes). Everything else in it is well-formed."""
    header, body = {}, bytearray()
    for name, dtype, shape, content in tensors:
        header[name] = entry(len(body), len(body) + len(content), shape, dtype)
        body += content
    return weights_file(header, bytes(body))


def good_tensors(**options: object) -> dict[str, np.ndarray]:
    """The good adapter's weights by name."""
    return adapter_tensors(BASE, rank=RANK, **options)
