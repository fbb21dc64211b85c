"""A process that repeats loops until a signal: the worker, and the process that decides for the fleet."""

import signal
import threading
from types import FrameType

import structlog
from sqlalchemy import Engine

from control_plane import metrics
from core import telemetry
from core.loops import DatabaseChanges, Loop, LoopThreads
from core.struct_types import complete_struct_types

_BACKOFF_MAX_S = 10


def run_until_signal(loops: list[Loop], engine: Engine, *, look_s: float, stop_s: float) -> int:
    """Run these loops until SIGTERM or SIGINT. Returns 0 when all of them finished their round within ``stop_s``, 1
    otherwise. ``look_s``: see ``core.loops.DatabaseChanges``.
    """
    complete_struct_types()
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    changes = DatabaseChanges(engine, look_s=look_s)
    threads = LoopThreads(
        loops, changes, backoff_max_s=_BACKOFF_MAX_S, failures=metrics.LOOP_FAILURES, alive=metrics.LOOP_ALIVE
    )
    threads.start()
    changes.start()
    telemetry.report_readiness(lambda: changes.trouble)
    structlog.get_logger().info("process started", loops=[loop.name for loop in loops])
    stop.wait()
    changes.stop()
    late = threads.stop(stop_s)
    structlog.get_logger().info("process stopped", unfinished=late)
    if not late:
        engine.dispose()
    return 1 if late else 0
