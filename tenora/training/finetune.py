"""Fine-tunes an adapter in a child process: starts it, reads its progress and report, and holds its command line.

``python -m tenora.training.finetune --base DIR --dataset examples/ticket_router --out DIR``. The training itself is
``tenora.training.train``. Only the child imports it, so callers do not import torch.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tenora.stack.base_model import HUB_NAME
from tenora.training.example_tasks import TASKS, Task
from tenora.training.hyperparameters import RECIPES

DEFAULT_SEED: Final = 7
_STDERR_TAIL_CHARACTERS: Final = 2000


class Step(msgspec.Struct, frozen=True, tag=True):
    """A line of the child's standard output: one optimizer step is done."""

    step: int
    steps: int
    loss: float


class FinetuneReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The child's last line. ``tokens`` were computed over all epochs; ``final_loss`` is the mean of the last epoch."""

    task: str
    seed: int
    examples: int
    steps: int
    tokens: int
    final_loss: float
    threads: int
    wall_s: float
    cpu_s: float
    adapter_bytes: int


StepProgress = Callable[[int, int, float], None]


def finetune(
    base_dir: Path, dataset: Path, out_dir: Path, *, task: Task, seed: int = DEFAULT_SEED, progress: StepProgress
) -> FinetuneReport:
    """Train ``task`` on ``dataset/train.jsonl`` and leave a PEFT adapter in ``out_dir``. Blocks; may run in a thread.

    Calls ``progress(step, steps, loss)`` after each step. Raises RuntimeError with the end of the child's messages when
    the child fails. The child never outlives this call.
    """
    argv = (
        sys.executable, "-m", "tenora.training.finetune", "--json", "--base", str(base_dir), "--dataset", str(dataset),
        "--out", str(out_dir), "--task", task.name, "--seed", str(seed),
    )  # fmt: skip
    with (
        tempfile.TemporaryFile() as messages,
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages) as child,
    ):
        assert child.stdout is not None
        report: FinetuneReport | None = None
        try:
            for line in child.stdout:
                message: Step | FinetuneReport = msgspec.json.decode(line, type=Step | FinetuneReport)
                if isinstance(message, FinetuneReport):
                    report = message
                else:
                    progress(message.step, message.steps, message.loss)
        except BaseException:
            child.kill()
            child.wait()  # Popen itself waits a quarter of a second only where this is a KeyboardInterrupt
            raise
        if child.wait() != 0 or report is None:
            messages.seek(0)
            tail = messages.read().decode(errors="replace")[-_STDERR_TAIL_CHARACTERS:]
            raise RuntimeError(f"fine-tuning {task.name} ended with {child.returncode}:\n{tail}")
        return report


def run(
    base_dir: Path, dataset: Path, out_dir: Path, *, task: Task, seed: int, progress: StepProgress
) -> FinetuneReport:
    """Fine-tune in this process."""
    started_s, started_cpu_s = time.monotonic(), time.process_time()
    examples = task.load(dataset, "train")
    # How long an OpenMP thread spins at a barrier before it sleeps. Never sleeping cost tenfold CPU seconds beside
    # other busy processes; sleeping at once made a step take 0.70 s instead of 0.40 s on two idle cores.
    os.environ.update(HF_HUB_OFFLINE="1", GOMP_SPINCOUNT="10000")
    from tenora.training.train import train  # torch: for the child only, and only once the dataset is known to be good

    counts = train(
        base_dir, out_dir, task=task, examples=examples, hub_name=HUB_NAME, recipe=RECIPES[task.name], seed=seed,
        progress=progress,
    )  # fmt: skip
    return FinetuneReport(
        task=task.name,
        seed=seed,
        examples=len(examples),
        steps=counts.steps,
        tokens=counts.tokens,
        final_loss=counts.final_loss,
        threads=counts.threads,
        wall_s=round(time.monotonic() - started_s, 3),
        cpu_s=round(time.process_time() - started_cpu_s, 3),
        adapter_bytes=(out_dir / "adapter_model.safetensors").stat().st_size,
    )


def finetune_progress(names: Sequence[str]) -> tuple[Progress, list[StepProgress]]:
    """Progress bars on standard error, one for each fine-tune, and the callbacks that move them. They are shown while
    the first is entered as a context manager, where standard error is a terminal.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    # What is printed meanwhile goes above the bars, but stays on standard output where that is a file.
    bars = Progress(*columns, console=console, disable=not console.is_terminal, redirect_stdout=sys.stdout.isatty())

    def callback(bar: TaskID) -> StepProgress:
        return lambda step, steps, loss: bars.update(bar, completed=step, total=steps, loss=loss)

    return bars, [callback(bars.add_task(f"fine-tuning {name}", total=None, loss=float("nan"))) for name in names]


def print_summary(report: FinetuneReport) -> None:
    """Print one line on standard error where no progress bar showed the fine-tune."""
    console = Console(stderr=True)
    if not console.is_terminal:
        line = f"fine-tuned {report.task}: {report.steps} steps in {report.wall_s:.0f} s, loss {report.final_loss:.3f}"
        console.print(line, highlight=False, soft_wrap=True)


def main() -> None:
    """Train one of the example adapters."""
    parser = argparse.ArgumentParser(prog="python -m tenora.training.finetune", description=main.__doc__)
    parser.add_argument("--base", type=Path, required=True, help="checkpoint folder of the base model")
    parser.add_argument("--dataset", type=Path, required=True, help="folder with train.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="folder for the adapter")
    parser.add_argument("--task", choices=sorted(TASKS), help="default: the dataset folder's name")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--json", action="store_true", help="progress and report as JSON lines on standard output")
    arguments = parser.parse_args()
    name = arguments.task or arguments.dataset.resolve().name
    if name not in TASKS:
        parser.error(f"--dataset: {name!r} is no known task; name one with --task ({', '.join(sorted(TASKS))})")
    job = {"base_dir": arguments.base, "dataset": arguments.dataset, "out_dir": arguments.out, "seed": arguments.seed}
    if arguments.json:
        _print_json(
            run(**job, task=TASKS[name], progress=lambda step, steps, loss: _print_json(Step(step, steps, loss)))
        )
        return
    bars, (show,) = finetune_progress([name])
    with bars:
        report = run(**job, task=TASKS[name], progress=show)
    print_summary(report)
    _print_json(report)


def _print_json(line: Step | FinetuneReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
