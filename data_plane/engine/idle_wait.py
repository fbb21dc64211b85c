"""Ends the busy wait of vLLM's processes for each other sooner (0.32, ``shm_broadcast.py``, ``SpinCondition``).

After each message a reader polls the shared memory for a second before it sleeps until the next one is announced. So
the agent's probes of an idle engine, one every few seconds, kept a fifth of a core busy.
"""

from typing import Final

BUSY_S: Final = 0.05
"""Longer than a usual step, so that the readers of a busy engine still poll. One that sleeps wakes in 0.1 ms."""


def install() -> None:
    """Shorten the busy wait of every reader that this process creates from now on."""
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    SpinCondition.__init__.__defaults__ = (BUSY_S,)  # of ``busy_loop_s``, which vLLM never gives
