"""The settings of an engine that decide what it serves and how much of it at once. A pool revision fixes all of them.

Where an engine listens and how its agent watches it are not among them.
"""

from typing import Literal

from pydantic import BaseModel, Field, field_validator

from core.rank_classes import VLLM_RANKS


class EngineSettings(BaseModel, frozen=True):
    """A replica reads them from ``TENORA_…`` variables of the same names."""

    engine_task: Literal["generate", "embed"] = Field(
        default="generate", description="Whether the engine generates text or makes embeddings (`embed`)."
    )
    engine_slots: int = Field(
        default=8, ge=1, le=256, description="Different adapters that one batch can use (vLLM max_loras)."
    )
    engine_memory_adapters: int = Field(
        default=64, ge=1, le=10_000, description="Adapters kept in host memory (vLLM max_cpu_loras)."
    )
    engine_loader_threads: int = Field(
        default=1, ge=1, le=16, description="Threads that read adapters from disk while the engine runs its steps."
    )
    engine_rank_max: int = Field(
        default=16,
        description="Largest LoRA rank that the replica serves, and so its rank class; vLLM allows "
        f"{', '.join(map(str, VLLM_RANKS))}.",
    )
    engine_dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto",
        description="Number format of weights and activations; auto takes the checkpoint's, or float32 on a CPU "
        "without AVX-512.",
    )
    engine_context_tokens: int = Field(
        default=2048, ge=64, le=1_000_000, description="Longest prompt plus output, in tokens (vLLM max_model_len)."
    )
    engine_sequences: int = Field(
        default=64, ge=1, le=4096, description="Most requests in one batch (vLLM max_num_seqs)."
    )
    engine_batched_tokens: int = Field(
        default=2048, ge=64, le=1_000_000, description="Most tokens in one step (vLLM max_num_batched_tokens)."
    )
    engine_block_tokens: int = Field(
        default=32, ge=16, multiple_of=16, description="Tokens of one KV cache block; the CPU needs a multiple of 32."
    )
    engine_kv_gib: int = Field(
        default=1, ge=1, le=1024, description="Size of the KV cache on a CPU, in GiB; a GPU sizes its own."
    )

    @field_validator("engine_rank_max")
    @classmethod
    def _allowed_by_vllm(cls, given: int) -> int:
        if given not in VLLM_RANKS:
            raise ValueError(f"{given} is none of vLLM's ranks")
        return given
