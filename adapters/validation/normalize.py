"""Re-serializes an accepted upload: a typed config and one bfloat16 file with canonical names in sorted order.

Equal meaning gives equal bytes and so one digest. No byte of the tenant's files is copied unchanged, except weights
that were bfloat16 already. ``adapters.validation.validate`` decides first what is accepted.
"""

import json
from pathlib import Path
from typing import Final

from adapters.base_model_spec import BaseModelSpec, kind_of
from adapters.manifest import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, AdapterManifest, ManifestFile, sha256_of
from adapters.validation.tensor_rules import SIDES, canonical_name
from adapters.validation.validate import ValidatedAdapter
from adapters.validation.weight_rules import read_bfloat16

REVISION_FILES: Final = (CONFIG_FILE, WEIGHTS_FILE, MANIFEST_FILE)

_ALIGNMENT: Final = 8
_BFLOAT16_BYTES: Final = 2


def normalize(accepted: ValidatedAdapter, source: Path, target: Path, base: BaseModelSpec) -> AdapterManifest:
    """Write config, weights and manifest into the empty folder ``target``; the manifest comes last."""
    targets = _canonical_targets([pair.module for pair in accepted.pairs], base)
    (target / CONFIG_FILE).write_bytes(_config_bytes(accepted, targets, base))
    _write_weights(accepted, source / WEIGHTS_FILE, target / WEIGHTS_FILE)
    manifest = AdapterManifest(
        base_model=base.id,
        rank=accepted.config.rank,
        alpha=accepted.config.alpha,
        use_rslora=accepted.config.use_rslora,
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
        "lora_alpha": accepted.config.alpha,
        "peft_type": "LORA",
        "r": accepted.config.rank,
        "target_modules": list(targets),
        "task_type": "CAUSAL_LM",
        "use_rslora": accepted.config.use_rslora,
    }
    return json.dumps(config, sort_keys=True, separators=(",", ":")).encode()


def _write_weights(accepted: ValidatedAdapter, source: Path, target: Path) -> None:
    tensors = {
        canonical_name(pair.module, side): tensor
        for pair in accepted.pairs
        for side, tensor in zip(SIDES, (pair.a, pair.b), strict=True)
    }
    names = sorted(tensors)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in names:
        shape = tensors[name].shape
        end = offset + shape[0] * shape[1] * _BFLOAT16_BYTES
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with source.open("rb") as stream, target.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for chunk in read_bfloat16(stream, tensors[name]):
                out.write(chunk)


def _describe(path: Path) -> ManifestFile:
    size_bytes, sha256 = sha256_of(str(path))
    return ManifestFile(path=path.name, size_bytes=size_bytes, sha256=sha256)
