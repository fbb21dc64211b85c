"""Re-serializes an accepted upload: a typed config and one bfloat16 file with canonical names in sorted order.

Equal meaning gives equal bytes and so one digest. No byte of the tenant's files is copied unchanged, except weights
that were bfloat16 already. ``adapters.validation.validate`` decides first what is accepted.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from adapters.base_model_spec import BaseModelSpec, kind_of
from adapters.manifest import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, AdapterManifest, StoredFile, sha256_of
from adapters.validation.folding import Folding
from adapters.validation.tensor_names import canonical_name
from adapters.validation.tensor_rules import SIDES, LoraPair
from adapters.validation.validate import ValidatedAdapter
from adapters.validation.weight_rules import BFLOAT16_BYTES, read_bfloat16, read_rows, to_bfloat16

REVISION_FILES: Final = (CONFIG_FILE, WEIGHTS_FILE, MANIFEST_FILE)

_ALIGNMENT: Final = 8


def normalize(accepted: ValidatedAdapter, source: Path, target: Path, base: BaseModelSpec) -> AdapterManifest:
    """Write config, weights and manifest into the empty folder ``target``; the manifest comes last."""
    targets = _canonical_targets([pair.module for pair in accepted.pairs], base)
    (target / CONFIG_FILE).write_bytes(_config_bytes(accepted, targets, base))
    _write_weights(accepted, source / WEIGHTS_FILE, target / WEIGHTS_FILE)
    manifest = AdapterManifest(
        base_model=base.id,
        rank=accepted.folding.rank,
        alpha=accepted.folding.alpha,
        use_rslora=accepted.folding.use_rslora,
        target_modules=targets,
        tensor_count=len(accepted.pairs) * len(SIDES),
        files=tuple(_describe(target / name) for name in (CONFIG_FILE, WEIGHTS_FILE)),
    )
    (target / MANIFEST_FILE).write_bytes(manifest.to_json())
    return manifest


def _canonical_targets(modules: list[str], base: BaseModelSpec) -> tuple[str, ...]:
    """Only the kinds when every layer has them, otherwise each module by its full name; never a pattern."""
    kinds = {kind_of(module) for module in modules}
    if len(modules) == sum(kind_of(module) in kinds for module in base.modules):
        return tuple(sorted(kinds))
    return tuple(sorted(modules))


def _config_bytes(accepted: ValidatedAdapter, targets: tuple[str, ...], base: BaseModelSpec) -> bytes:
    """Only the fields that vLLM's and PEFT's loaders need for the right arithmetic."""
    config = {
        "base_model_name_or_path": base.id,
        "bias": "none",
        "inference_mode": True,
        "lora_alpha": accepted.folding.alpha,
        "peft_type": "LORA",
        "r": accepted.folding.rank,
        "target_modules": list(targets),
        "task_type": "CAUSAL_LM",
        "use_rslora": accepted.folding.use_rslora,
    }
    return json.dumps(config, sort_keys=True, separators=(",", ":")).encode()


def _write_weights(accepted: ValidatedAdapter, source: Path, target: Path) -> None:
    rank = accepted.folding.rank
    tensors = {canonical_name(pair.module, side): (pair, side) for pair in accepted.pairs for side in SIDES}
    names = sorted(tensors)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in names:
        pair, side = tensors[name]
        shape = (rank, pair.a.shape[1]) if side == "A" else (pair.b.shape[0], rank)
        end = offset + shape[0] * shape[1] * BFLOAT16_BYTES
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with source.open("rb") as stream, target.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for chunk in _folded(stream, *tensors[name], accepted.folding):
                out.write(chunk)


def _folded(stream: BinaryIO, pair: LoraPair, side: str, folding: Folding) -> Iterator[bytes]:
    """The tensor in bfloat16, padded with zeros to the common rank. B is multiplied in float32 by the module's factor;
    a factor of 1 rounds nothing.
    """
    padding, factor = folding.rank - pair.rank, folding.factor(pair.module)
    if side == "A":
        yield from read_bfloat16(stream, pair.a)
        yield bytes(padding * pair.a.shape[1] * BFLOAT16_BYTES)
    elif padding == 0 and factor == 1:
        yield from read_bfloat16(stream, pair.b)
    else:
        for rows in read_rows(stream, pair.b):
            wide = np.pad(rows * np.float32(factor), ((0, 0), (0, padding)))
            yield to_bfloat16(wide).astype("<u2").tobytes()


def _describe(path: Path) -> StoredFile:
    size_bytes, sha256 = sha256_of(str(path))
    return StoredFile(path=path.name, size_bytes=size_bytes, sha256=sha256)
