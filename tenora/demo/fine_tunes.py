"""The demo's fine-tunes, which run in child processes while the stack starts."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from core.ids import new_id
from tenora.training.example_tasks import Task
from tenora.training.finetune import FinetuneReport, StepProgress, finetune, finetune_progress, print_summary

_EXAMPLES: Final = Path(__file__).parent.parent.parent / "examples"


def dataset(task: Task) -> Path:
    """The folder of the task's examples in this repository."""
    return _EXAMPLES / task.name


class FineTunes:
    """Trains one adapter for each task, all at the same time. Entering starts the trainings; one of them computes while
    another loads torch, or while the stack waits. Leaving early ends them at their next step.
    """

    def __init__(self, tasks: Sequence[Task], checkpoint: Path, folder: Path) -> None:
        self._tasks = tasks
        self._checkpoint = checkpoint
        self._folders = [folder / f"{task.name}-{new_id('up')}" for task in tasks]
        self._bars, self._callbacks = finetune_progress([task.name for task in tasks])
        self._pool = ThreadPoolExecutor(len(tasks))
        self._running: list[Future[FinetuneReport]] = []
        self._stopped = threading.Event()

    def __enter__(self) -> Self:
        self._running = [
            self._pool.submit(
                finetune, self._checkpoint, dataset(task), out, task=task, progress=self._until_stopped(show)
            )
            for task, out, show in zip(self._tasks, self._folders, self._callbacks, strict=True)
        ]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        self._pool.shutdown()

    def finished(self) -> Iterator[tuple[Task, Path]]:
        """Each task with its adapter's folder, as its training ends. The other trainings' progress is shown meanwhile.

        Raises RuntimeError as soon as one training fails.
        """
        with self._bars:
            for each in as_completed(self._running):
                print_summary(each.result())
                place = self._running.index(each)
                yield self._tasks[place], self._folders[place]

    def _until_stopped(self, show: StepProgress) -> StepProgress:
        def on_step(step: int, steps: int, loss: float) -> None:
            if self._stopped.is_set():
                raise RuntimeError("stopped: another fine-tune failed, or the demo ended")
            show(step, steps, loss)

        return on_step
