"""Makes a smaller base model of a checkpoint: some of its layers stay, and briefly learn to say what all of them said.
So one machine can serve two base models without another download.

``python -m tenora.training.shrink --base DIR --out DIR --layers 10``. The result is for trials; its config says what it
was made from.
"""

import argparse
import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tenora.training.example_tasks import TASKS

if TYPE_CHECKING:
    import torch

LABEL: Final = "tenora_made_from"
_EXAMPLES: Final = Path(__file__).parent.parent.parent / "examples"
_COPIED: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_BATCH_EXAMPLES: Final = 8
_LEARNING_RATE: Final = 5e-4


def kept_layers(layers: int, wanted: int) -> list[int]:
    """The numbers of ``wanted`` of so many layers, evenly apart, with the first and the last. Raises ValueError."""
    if not 2 <= wanted <= layers:
        raise ValueError(f"--layers: the model has {layers} layers; keep at least 2 of them")
    return [round(place * (layers - 1) / (wanted - 1)) for place in range(wanted)]


def shrink(
    base_dir: Path, out_dir: Path, *, layers: int, steps: int, seed: int, progress: Callable[[int, int, float], None]
) -> None:
    """Write the smaller checkpoint into ``out_dir``. ``progress(step, steps, loss)`` is called after each step of the
    distillation. Raises ValueError for a number of layers that the model does not have.
    """
    os.environ.update(HF_HUB_OFFLINE="1")
    import torch  # seconds, and only once the arguments are read
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from tenora.training.train import batches, pack, shared_prefix_tokens, tokenize

    logging.disable_progress_bar()
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(base_dir)
    whole = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32, attn_implementation="eager").eval()
    small = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32, attn_implementation="eager")
    _keep(small, kept_layers(len(small.model.layers), layers))
    optimizer = torch.optim.AdamW(small.parameters(), lr=_LEARNING_RATE, weight_decay=0.0)
    turns = []
    for task in TASKS.values():
        found = [tokenize(tokenizer, task, example) for example in task.load(_EXAMPLES / task.name, "train")]
        prefix = shared_prefix_tokens([sequence.prompt for sequence in found])
        turns.append((batches(found, _BATCH_EXAMPLES, seed), prefix))
    for step, (task_batches, prefix) in enumerate(itertools.islice(itertools.cycle(turns), steps), 1):
        packed = pack(next(task_batches), prefix, torch.float32)
        with torch.no_grad():
            wanted = _logits(whole, packed)
        loss = torch.nn.functional.kl_div(
            _logits(small, packed).log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean"
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        progress(step, steps, loss.item())
    small.to(torch.bfloat16).save_pretrained(out_dir)
    for name in _COPIED:
        if (base_dir / name).is_file():
            shutil.copyfile(base_dir / name, out_dir / name)
    _label(out_dir / "config.json", f"{base_dir.name}, {layers} layers of {len(whole.model.layers)}")


def _logits(model: Any, packed: Any) -> "torch.Tensor":
    """What the model says at the places that answers are predicted at: (A, vocabulary)."""
    hidden = model.model(
        input_ids=packed.input_ids, attention_mask=packed.mask, position_ids=packed.position_ids, use_cache=False
    ).last_hidden_state[0]
    logits: torch.Tensor = model.lm_head(hidden[packed.answer_at])
    return logits


def _keep(model: Any, kept: list[int]) -> None:
    import torch

    model.model.layers = torch.nn.ModuleList(model.model.layers[number] for number in kept)
    model.config.num_hidden_layers = len(kept)
    for place, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = place


def _label(config: Path, made_from: str) -> None:
    content = json.loads(config.read_bytes())
    config.write_text(json.dumps(content | {LABEL: made_from}, indent=2))


def main() -> None:
    """Make a smaller base model for trials."""
    parser = argparse.ArgumentParser(prog="python -m tenora.training.shrink", description=main.__doc__)
    parser.add_argument("--base", type=Path, required=True, help="checkpoint folder of the base model")
    parser.add_argument("--out", type=Path, required=True, help="folder for the smaller one")
    parser.add_argument("--layers", type=int, default=10, help="layers to keep (10)")
    parser.add_argument("--steps", type=int, default=60, help="steps of distillation on the examples (60)")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    console = Console(stderr=True)
    columns = (TextColumn("distilling"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        bar = bars.add_task("distilling", total=arguments.steps)
        try:
            shrink(
                arguments.base, arguments.out, layers=arguments.layers, steps=arguments.steps, seed=arguments.seed,
                progress=lambda step, _steps, _loss: bars.update(bar, completed=step),
            )  # fmt: skip
        except ValueError as error:
            parser.error(str(error))
    console.print(f"{arguments.out} has {arguments.layers} layers of {arguments.base.name}; use it for trials only")


if __name__ == "__main__":
    main()
