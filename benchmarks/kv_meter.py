"""What measuring KV page-time adds to a step of vLLM's scheduler: the same steps with and without the meter.

``python -m benchmarks.kv_meter`` prints the median microseconds that scheduling and updating take for a batch of
decoding requests. The two schedulers take turns step by step, so that a noisy machine disturbs both alike.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.fixtures.engine.vllm_scheduler import SteppedScheduler


def main() -> None:
    """Run the comparison and print one line for each size of block."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--block-tokens", type=int, nargs="+", default=[16, 32, 128])
    options = parser.parse_args()
    for block_tokens in options.block_tokens:
        plain_us, measured_us = compare(options.requests, options.steps, block_tokens)
        added = [measured - plain for plain, measured in zip(plain_us, measured_us, strict=True)]
        print(
            f"blocks of {block_tokens:3}: {statistics.median(plain_us):7.1f} us a step without, "
            f"{statistics.median(measured_us):7.1f} us with; added in the median {statistics.median(added):5.1f} us, "
            f"in the mean {statistics.fmean(sorted(added)[len(added) // 20 : -len(added) // 20]):5.1f} us"
        )


def compare(requests: int, steps: int, block_tokens: int) -> tuple[list[float], list[float]]:
    """Microseconds of each step without and with the meter."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    from data_plane.engine.kv_meter import attach

    measured = type("Measured", (AsyncScheduler,), {})
    attach(measured)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TENORA_ENGINE_RUN_DIR": folder, "TENORA_REPLICA_ID": "rep_one"}
        (run_dir := Path(folder) / "rep_one").mkdir()
        blocks = requests * (steps + 256) // block_tokens + requests + 1
        options = {"blocks": blocks, "block_tokens": block_tokens, "sequences": requests}
        both = [SteppedScheduler(run_dir, kind, **options) for kind in (AsyncScheduler, measured)]
        for stepped in both:
            for number in range(requests):
                stepped.add(f"cmpl-req_{number}-0-0a1b2c3d", [number] * (100 + number), output_tokens=steps + 10)
            stepped.complete(stepped.schedule())
        times: tuple[list[float], list[float]] = ([], [])
        for step in range(steps):
            for which in (0, 1) if step % 2 else (1, 0):
                times[which].append(_step_us(both[which]))
    return times


def _step_us(stepped: SteppedScheduler) -> float:
    began = time.perf_counter()
    scheduled: Any = stepped.schedule()
    ended = time.perf_counter()
    stepped.complete(scheduled)
    return (ended - began) * 1e6


if __name__ == "__main__":
    main()
