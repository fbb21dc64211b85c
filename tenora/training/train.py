"""Trains a LoRA adapter with PEFT on the CPU: packs batches, computes the loss, and saves the adapter.

It needs torch and gigabytes of memory, so ``tenora.training.finetune`` runs it in a child process.
"""

import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from adapters.base_model_spec import LINEAR_KINDS
from tenora.training.example_tasks import Example, Task
from tenora.training.hyperparameters import Recipe
from tenora.training.thread_count import ThreadCount, candidate_counts, idle_core_seconds


@dataclass(frozen=True)
class Sequence:
    """One example as token ids. The answer ends with the end-of-turn token, as the engine's would."""

    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A batch as one row of L tokens: the prefix that all prompts share, once, then each example's rest.

    ``input_ids``, ``position_ids``: (1, L). ``mask``: (1, 1, L, L), added to attention scores: a token sees the prefix
    and its own example up to itself. ``answer_at``: (A,) places whose next token is one of ``targets``: (A,).
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    mask: torch.Tensor
    answer_at: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True)
class Counts:
    """Training totals. ``tokens`` were computed over all epochs; ``final_loss`` is the mean of the last epoch;
    ``threads`` is the count that computed most steps.
    """

    steps: int
    tokens: int
    final_loss: float
    threads: int


def tokenize(tokenizer: Any, task: Task, example: Example) -> Sequence:
    """The prompt exactly as an engine renders it for ``task.messages``, and the answer as it would be generated."""
    prompt = tokenizer.apply_chat_template(task.messages(example.prompt), add_generation_prompt=True, return_dict=False)
    answer = tokenizer.encode(example.answer, add_special_tokens=False)
    return Sequence(prompt=prompt, answer=[*answer, tokenizer.eos_token_id])


def shared_prefix_tokens(prompts: list[list[int]]) -> int:
    """How many leading tokens all prompts share. The last token of a prompt is never counted, since it predicts."""
    first, last = min(prompts), max(prompts)
    limit = min(map(len, prompts)) - 1
    return next((place for place in range(limit) if first[place] != last[place]), limit)


def pack(batch: list[Sequence], prefix_tokens: int, dtype: torch.dtype) -> Packed:
    """Pack sequences whose first ``prefix_tokens`` are the same: a padded batch's loss at about half its tokens."""
    ids = list(batch[0].prompt[:prefix_tokens])
    positions = list(range(prefix_tokens))
    owner = [-1] * prefix_tokens
    answer_at: list[int] = []
    targets: list[int] = []
    for index, sequence in enumerate(batch):
        rest = sequence.prompt[prefix_tokens:] + sequence.answer[:-1]
        answer_at += range(len(ids) + len(sequence.prompt) - prefix_tokens - 1, len(ids) + len(rest))
        targets += sequence.answer
        ids += rest
        positions += range(prefix_tokens, prefix_tokens + len(rest))
        owner += [index] * len(rest)
    owners = torch.tensor(owner)
    visible = ((owners[None] == owners[:, None]) | (owners[None] == -1)).tril()
    return Packed(
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        mask=torch.where(visible, 0.0, torch.finfo(dtype).min).to(dtype)[None, None],
        answer_at=torch.tensor(answer_at),
        targets=torch.tensor(targets),
    )


def answer_loss(model: Any, packed: Packed) -> torch.Tensor:
    """Mean cross-entropy over the answers' tokens. The vocabulary is projected to at those places only."""
    hidden = model.model(
        input_ids=packed.input_ids, attention_mask=packed.mask, position_ids=packed.position_ids, use_cache=False
    ).last_hidden_state[0]
    return functional.cross_entropy(model.lm_head(hidden[packed.answer_at]).float(), packed.targets)


def train(
    base_dir: Path,
    out_dir: Path,
    *,
    task: Task,
    examples: list[Example],
    hub_name: str,
    recipe: Recipe,
    seed: int,
    progress: Callable[[int, int, float], None],
) -> Counts:
    """Train an adapter and save it in ``out_dir`` as PEFT does (fp32 safetensors, config, model card).

    The same seed, examples and ``recipe.threads`` give the same bytes. ``progress(step, steps, loss)``
    is called after each step.
    """
    transformers_logging.disable_progress_bar()
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(base_dir)
    sequences = [tokenize(tokenizer, task, example) for example in examples]
    prefix_tokens = shared_prefix_tokens([sequence.prompt for sequence in sequences])
    model = _with_adapter(base_dir, hub_name, recipe)
    steps = recipe.steps(len(sequences))
    optimizer = _MixedPrecisionAdamW(model, recipe, steps)
    causal = model.base_model.model
    tokens = 0
    losses: list[float] = []
    threads = ThreadCount([recipe.threads] if recipe.threads else candidate_counts(len(os.sched_getaffinity(0))))
    steps_by_threads: Counter[int] = Counter()
    for step, batch in enumerate(itertools.islice(batches(sequences, recipe.batch_examples, seed), steps), 1):
        begun_s, idle_s = time.monotonic(), idle_core_seconds()
        torch.set_num_threads(threads.current)
        steps_by_threads[threads.current] += 1
        packed = pack(batch, prefix_tokens, causal.dtype)
        loss = answer_loss(causal, packed)
        loss.backward()
        optimizer.step()
        elapsed_s = time.monotonic() - begun_s
        threads.record(elapsed_s, packed.input_ids.numel(), (idle_core_seconds() - idle_s) / elapsed_s)
        tokens += packed.input_ids.numel()
        losses.append(loss.item())
        progress(step, steps, losses[-1])
    optimizer.restore_full_precision()
    model.save_pretrained(out_dir, save_embedding_layers=False)
    last_epoch = losses[-(steps // recipe.epochs) :]
    return Counts(
        steps=steps,
        tokens=tokens,
        final_loss=sum(last_epoch) / len(last_epoch),
        threads=steps_by_threads.most_common(1)[0][0],
    )


def fastest_dtype() -> torch.dtype:
    """The type in which this CPU trains fastest: bfloat16 with AMX, otherwise float32.

    Without AMX, a step of the router took 1.13 s in bfloat16, though AVX512-BF16 was there, and 0.82 s in float32.
    """
    return torch.bfloat16 if torch.cpu.get_capabilities().get("amx_bf16") else torch.float32


def _with_adapter(base_dir: Path, hub_name: str, recipe: Recipe) -> PeftModel:
    # "eager": the CPU's fused attention takes longer for its bf16 backward pass than these short rows do altogether.
    base = AutoModelForCausalLM.from_pretrained(base_dir, dtype=fastest_dtype(), attn_implementation="eager")
    base.config._name_or_path = base.name_or_path = hub_name  # noqa: SLF001 - the name that PEFT writes down, not our local path
    config = LoraConfig(
        r=recipe.rank, lora_alpha=recipe.alpha, target_modules=list(LINEAR_KINDS), task_type="CAUSAL_LM"
    )
    return get_peft_model(base, config, autocast_adapter_dtype=False)


def batches(sequences: list[Sequence], batch_examples: int, seed: int) -> Iterator[list[Sequence]]:
    """Endless epochs, each in a different order."""
    order = random.Random(seed)  # noqa: S311 - an order of examples, not a secret
    while True:
        epoch = order.sample(sequences, len(sequences))
        for start in range(0, len(epoch), batch_examples):
            yield epoch[start : start + batch_examples]


class _MixedPrecisionAdamW:
    """AdamW on fp32 copies of bf16 weights: the speed of bf16 without rounding small updates away. Of fp32 weights, the
    copies are the weights themselves.

    The rate warms up over a tenth of the steps, then falls in a straight line to zero.
    """

    def __init__(self, model: PeftModel, recipe: Recipe, steps: int) -> None:
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._masters = [weight.detach().float() for weight in self._weights]
        self._adamw = torch.optim.AdamW(self._masters, lr=recipe.learning_rate, weight_decay=0.0)
        self._rate = torch.optim.lr_scheduler.LambdaLR(
            self._adamw, lambda step: min(1.0, (step + 1) / max(1.0, steps / 10)) * (1 - step / steps)
        )

    def step(self) -> None:
        """Apply the gradients, clipped to norm 1, and clear them."""
        for master, weight in zip(self._masters, self._weights, strict=True):
            master.grad, weight.grad = weight.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self._masters, 1.0)
        self._adamw.step()
        self._rate.step()
        with torch.no_grad():
            for master, weight in zip(self._masters, self._weights, strict=True):
                weight.copy_(master)

    def restore_full_precision(self) -> None:
        """Put the fp32 copies in the weights' place, for saving."""
        for master, weight in zip(self._masters, self._weights, strict=True):
            weight.data = master
