"""Reads a base model from a folder. What the folder lacks is named all at once, each part with its fix."""

import json
from pathlib import Path
from typing import Final

from adapters.base_model_spec import HUB_NAME, BaseModelSpec, describe, is_local_path
from core.errors import Unprocessable

_DOWNLOAD: Final = "download the whole model again, for example with: hf download ORG/MODEL --local-dir FOLDER"
_WEIGHTS: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_OTHER_WEIGHTS: Final = ("pytorch_model*.bin", "*.safetensors", "*.pth", "*.gguf")
_CONVERT: Final = (
    'python -c "from transformers import {kind} as A; A.from_pretrained({folder!r}).save_pretrained({folder!r})"'
)


def read_checkpoint(folder: Path, *, model_id: str, hub_name: str | None) -> BaseModelSpec:
    """The spec of the checkpoint. Without ``hub_name`` it has the name that its config says, else its id. Raises
    ValueError that names what is missing or wrong.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file; give the folder of a checkpoint in the format of transformers")
    if missing := missing_parts(folder):
        raise ValueError("\n".join((f"{folder} is no complete base model:", *(f"- {part}" for part in missing))))
    named = hub_name or _object(folder / "config.json").get("_name_or_path")
    fits = isinstance(named, str) and HUB_NAME.fullmatch(named) and not is_local_path(named)
    if hub_name and not fits:
        raise ValueError(f"--hub-name: {hub_name!r} is no name on the Hub; use ORG/MODEL")
    try:
        return describe(folder, id=model_id, hub_name=str(named) if fits else model_id)
    except Unprocessable as error:
        raise ValueError(str(error)) from error


def missing_parts(folder: Path) -> list[str]:
    """One line for each missing part; none when all are there."""
    if not _has(folder, "config.json"):
        if _has(folder, "adapter_config.json"):
            return [f"it is a LoRA adapter; upload it with: tenora upload {folder} --adapter NAME"]
        if inner := sorted(folder.glob("**/config.json"), key=lambda found: found.stat().st_mtime):
            return [f"config.json is in another folder; give that one: {inner[-1].parent}"]
    found = [] if _has(folder, "config.json") else [f"config.json is missing; {_DOWNLOAD}"]
    found += _weights(folder)
    if not _has(folder, "tokenizer.json"):
        found.append(f"tokenizer.json is missing; make it with: {_converted('AutoTokenizer', folder)}")
    if not _has(folder, "tokenizer_config.json"):
        found.append(f"tokenizer_config.json is missing; {_DOWNLOAD}")
    elif not _has(folder, "chat_template.jinja") and "chat_template" not in _object(folder / "tokenizer_config.json"):
        found.append(
            "the chat template is missing; put the one of its training into chat_template.jinja, or use the model's "
            "instruct version"
        )
    return found


def _weights(folder: Path) -> list[str]:
    if _has(folder, _INDEX):
        weight_map = _object(folder / _INDEX).get("weight_map")
        shards = sorted(set(weight_map.values())) if isinstance(weight_map, dict) else []
        lost = [str(name) for name in shards if not _has(folder, Path(str(name)).name)]
        return [f"{len(lost)} of {len(shards)} weight files are missing: {lost[0]} …; {_DOWNLOAD}"] if lost else []
    if _has(folder, _WEIGHTS):
        return []
    other = next((file.name for pattern in _OTHER_WEIGHTS for file in sorted(folder.glob(pattern))), None)
    if other is None:
        return [f"{_WEIGHTS} is missing; {_DOWNLOAD}"]
    return [f"{_WEIGHTS} is missing, and {other} cannot be read; {_fix_of(other, folder)}"]


def _fix_of(file: str, folder: Path) -> str:
    if file.startswith("pytorch_model"):
        return f"convert it with: {_converted('AutoModelForCausalLM', folder)}"
    return "use the model's repository in the format of transformers, which has config.json beside model.safetensors"


def _converted(kind: str, folder: Path) -> str:
    return _CONVERT.format(kind=kind, folder=str(folder))


def _has(folder: Path, name: str) -> bool:
    return (folder / name).is_file()


def _object(file: Path) -> dict[str, object]:
    """The JSON object in a file; empty for another content, which ``base_model_spec`` refuses."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
