"""Validates an untrusted upload with all rules in order. The result is the adapter's meaning, or the problems found.

Runs inside the confined child (``adapters.sandbox.child``); reads the two files and writes nothing. Fails closed:
input that is not understood is rejected.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from adapters.base_model_spec import BaseModelSpec
from adapters.manifest import CONFIG_FILE, WEIGHTS_FILE
from adapters.report import FileRejected, ReportBuilder
from adapters.safetensors_header import TensorEntry, read_header
from adapters.validation.bounds import PlatformBounds, UploadLimits
from adapters.validation.config_rules import CONFIG_BYTES_MAX, AdapterConfig, check_config, check_rank
from adapters.validation.file_rules import REQUIRED_FILES, check_first_bytes, check_names
from adapters.validation.folding import Folding, fold
from adapters.validation.tensor_rules import LoraPair, check_tensors
from adapters.validation.weight_rules import BFLOAT16_BYTES, check_weights


class ValidatedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """A folder whose two files are a plain LoRA for the base: complete, of the right shapes, finite."""

    config: AdapterConfig
    pairs: list[LoraPair]
    folding: Folding


def validate(
    folder: Path,
    *,
    base: BaseModelSpec,
    known_bases: Mapping[str, str],
    limits: UploadLimits,
    bounds: PlatformBounds,
    report: ReportBuilder,
) -> ValidatedAdapter | None:
    """Validate the upload in ``folder``. Returns None exactly if ``report`` has a problem."""
    check_names([path.name for path in folder.iterdir()], report)
    _check_kinds(folder, limits, report)
    if report.count > 0:
        return None
    check_first_bytes(folder, report)
    if report.count > 0:
        return None
    config = check_config(
        _read_config(folder),
        base,
        known_bases,
        rank_max=limits.rank_max,
        plan_name=limits.plan_name,
        report=report,
    )
    tensors = _read_tensors(folder, bounds, report)
    if config is None or tensors is None:
        return None
    pairs = check_tensors(tensors, config, base, report)
    if report.count > 0:
        return None
    widest = max(pairs, key=lambda pair: pair.rank)
    check_rank(
        widest.rank,
        base,
        rank_max=limits.rank_max,
        plan_name=limits.plan_name,
        report=report,
        module=widest.module if len(config.ranks) > 1 else None,
    )
    folding = fold(config, pairs)
    _check_folded_size(folding, pairs, limits, report)
    if report.count == 0:
        check_weights(folder / WEIGHTS_FILE, pairs, config, bounds.weights, report)
    return None if report.count > 0 else ValidatedAdapter(config=config, pairs=pairs, folding=folding)


def _check_folded_size(folding: Folding, pairs: list[LoraPair], limits: UploadLimits, report: ReportBuilder) -> None:
    """Padding to one rank can make an adapter much larger."""
    folded_bytes = sum((pair.a.shape[1] + pair.b.shape[0]) * folding.rank * BFLOAT16_BYTES for pair in pairs)
    if folded_bytes > limits.bytes_max:
        text = (
            f"with every module at rank {folding.rank}, which replicas need, it has {folded_bytes} bytes; "
            f'plan "{limits.plan_name}" allows {limits.bytes_max}: train with smaller or equal ranks'
        )
        report.refuse("upload_too_large", text, file=WEIGHTS_FILE)


def _check_kinds(folder: Path, limits: UploadLimits, report: ReportBuilder) -> None:
    total = 0
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_file():
            report.refuse(
                "file_not_allowed", "is not a regular file; upload the adapter's two files alone", file=path.name
            )
        else:
            size = path.stat().st_size
            total += size
            if size == 0 and path.name in REQUIRED_FILES:
                report.refuse("file_empty", "is empty; upload it again", file=path.name)
    if total > limits.bytes_max:
        text = limits.too_large(total)
        report.refuse("upload_too_large", text, file=WEIGHTS_FILE)


def _read_config(folder: Path) -> bytes:
    with (folder / CONFIG_FILE).open("rb") as stream:
        return stream.read(CONFIG_BYTES_MAX + 1)


def _read_tensors(folder: Path, bounds: PlatformBounds, report: ReportBuilder) -> list[TensorEntry] | None:
    try:
        return read_header(folder / WEIGHTS_FILE, bounds.header, file=WEIGHTS_FILE)
    except FileRejected as refused:
        report.add(refused.problem)
        return None
