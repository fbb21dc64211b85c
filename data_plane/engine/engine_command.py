"""The engine's command line and environment, as pure functions of the settings. The agent starts the process."""

import os
import sys
from pathlib import Path
from typing import Final

from adapters.base_model_spec import LINEAR_KINDS
from adapters.settings import CacheSettings, StoreSettings
from core.settings import S3Settings, TelemetrySettings
from data_plane.engine.plugin import ACTIVATION
from data_plane.engine.settings import MiddlewareSettings, ReplicaSettings


def _dtype(settings: ReplicaSettings, device: str) -> str:
    """A CPU without AVX-512 multiplies float32 five times faster than bfloat16, for which oneDNN has nothing there."""
    slow = settings.engine_dtype == "auto" and device == "cpu" and "avx512f" not in Path("/proc/cpuinfo").read_text()
    return "float32" if slow else settings.engine_dtype


def engine_argv(settings: ReplicaSettings, model: Path, device: str) -> list[str]:
    """Arguments of vLLM's OpenAI server module for the checkpoint in the folder ``model``. The ``vllm`` command fails
    with the CPU distribution.
    """
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--model", str(model), "--served-model-name", settings.base_model]
    argv += ["--dtype", _dtype(settings, device)]
    if settings.engine_task == "embed":
        argv += ["--runner", "pooling", "--convert", "embed"]
    argv += ["--host", settings.engine_host, "--port", str(settings.engine_port)]
    argv += ["--max-model-len", str(settings.engine_context_tokens), "--max-num-seqs", str(settings.engine_sequences)]
    argv += [
        "--max-num-batched-tokens",
        str(settings.engine_batched_tokens),
        "--block-size",
        str(settings.engine_block_tokens),
    ]
    argv += [
        "--enable-lora",
        "--max-loras",
        str(settings.engine_slots),
        "--max-lora-rank",
        str(settings.engine_rank_max),
    ]
    argv += ["--max-cpu-loras", str(settings.memory_adapters)]
    argv += ["--worker-extension-cls", "data_plane.engine.worker.lora_manager.WorkerExtension"]
    argv += ["--lora-target-modules", *LINEAR_KINDS]
    argv += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log", "--disable-fastapi-docs"]
    # Gateways know the grammar of this format only (gateway/api/grammar.py), and only its parser is bounded.
    argv += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    argv += [
        "--tool-strict-level",
        "parameter",
    ]  # otherwise a forced call of a tool without `strict` may have any arguments
    # Gateways compile every schema with this backend before an engine sees it; another backend could reject it.
    argv += ["--structured-outputs-config", '{"backend": "xgrammar"}']
    argv += ["--middleware", "data_plane.engine.middleware.middleware.EngineMiddleware"]
    if device == "cpu":
        argv += [
            "--enforce-eager"
        ]  # starts in half the time and, with libiomp5, serves faster on a CPU than compiled code
    return argv


_SECRETS: Final = frozenset({"engine_key", "engine_key_previous"})
"""Settings that the engine's processes read from the environment themselves."""


_PARTS: Final = (MiddlewareSettings, S3Settings, StoreSettings, CacheSettings, TelemetrySettings)
_OWN: Final = frozenset(f"TENORA_{name}".upper() for part in _PARTS for name in part.model_fields)
_SYSTEM: Final = frozenset(
    {"HOME", "HOSTNAME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LD_PRELOAD", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER",
     "VIRTUAL_ENV", "XDG_CACHE_HOME",
     "AWS_CA_BUNDLE",  # the authority of the object store, from which the engine loads adapters
     "TENORA_HOME"}  # by it, a supervisor recognizes the processes that it has started
)  # fmt: skip
_ROLE: Final = frozenset(
    {"AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_REGION", "AWS_DEFAULT_REGION",
     "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
     "AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"}
)  # fmt: skip
"""Where boto3 finds the replica's own role, by which it reads the bucket where ``s3_access_key`` is empty."""
_LIBRARIES: Final = (
    "CUDA_", "GOMP_", "HF_", "KMP_", "LC_", "MALLOC_", "MKL_", "NCCL_", "NUMBA_", "NVIDIA_", "OMP_", "OPENBLAS_",
    "PYTHON", "PYTORCH_", "TORCH", "TRANSFORMERS_", "TRITON_", "VLLM_",
)  # fmt: skip
"""Beginnings of the names by which libraries are configured."""


def _may_know(name: str) -> bool:
    return name in _OWN | _SYSTEM | _ROLE or name.startswith(_LIBRARIES)


def _shared_settings(settings: ReplicaSettings) -> dict[str, str]:
    """Settings that the plugin, the middleware and the worker read again in their own processes."""
    shared = settings.model_dump(mode="json", include=set(MiddlewareSettings.model_fields) - _SECRETS)
    return {f"TENORA_{name}".upper(): str(value) for name, value in shared.items()}


def engine_env(settings: ReplicaSettings, device: str, environ: dict[str, str]) -> dict[str, str]:
    """What the engine needs of ``environ``, plus the variables of vLLM and the plugin. Code that takes over an engine
    finds no address of Redis or Postgres here, and no secret of other processes. The engine key is never on a command
    line.
    """
    env = {
        **{name: value for name, value in environ.items() if _may_know(name)},
        ACTIVATION: device,
        **_shared_settings(settings),
        "VLLM_API_KEY": settings.engine_key.get_secret_value(),
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",  # without it vLLM never calls a resolver
        "VLLM_PLUGINS": "tenora",
        "VLLM_MAX_N_SEQUENCES": "4",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if device == "cpu":
        # Otherwise vLLM compiles some samplers at their first use. That takes seconds in a step for which every request
        # waits, and needs a C++ compiler, which a machine may not have.
        env["TORCHDYNAMO_DISABLE"] = "1"
        # LoRA code is compiled once, into a folder that the engine can write to and that no start empties.
        env.setdefault("NUMBA_CACHE_DIR", str(settings.run_dir.with_name("compiled")))
        env["VLLM_CPU_KVCACHE_SPACE"] = str(settings.engine_kv_gib)
        openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
        if openmp.exists():
            env["LD_PRELOAD"] = os.pathsep.join(filter(None, [str(openmp), environ.get("LD_PRELOAD", "")]))
    return env
