"""HTTP client of the agent's own engine: one real token or embedding as a probe, and its metrics.

A 200 from ``/health`` does not prove health: an engine can answer it while it generates nothing (CVE-2026-114051).
"""

from dataclasses import dataclass
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from data_plane.engine.settings import ReplicaSettings

_READ: Final = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_preemptions_total",
    "vllm:inter_token_latency_seconds_count",
    "vllm:inter_token_latency_seconds_sum",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
)
"""What ``parse_metrics`` reads. To parse the hundreds of other lines of the page would cost more than all else that an
agent does."""


@dataclass(frozen=True, kw_only=True)
class EngineMetrics:
    """The engine's own numbers at one scrape. ``blocks`` is the number of KV cache blocks that requests can use,
    ``kv_used`` the share of them in use, between 0 and 1. ``token_gaps`` counts the times between a request's tokens,
    ``token_gaps_s`` is their sum.
    """

    prompt_tokens: int
    generation_tokens: int
    running: int
    waiting: int
    kv_used: float
    blocks: int
    block_tokens: int
    preemptions: int = 0
    token_gaps: int = 0
    token_gaps_s: float = 0.0


class ProbeTokens:
    """Tokens of the agent's own requests: probes and canaries. They belong to no tenant and are not billed."""

    def __init__(self) -> None:
        self.prompt = 0
        self.generation = 0

    def add(self, prompt: int, generation: int) -> None:
        """Count one answer."""
        self.prompt += prompt
        self.generation += generation


def parse_metrics(text: str) -> EngineMetrics:
    """Read vLLM's Prometheus page. Raises KeyError for a page without the size of the KV cache: the engine is not
    ready.
    """
    values: dict[str, float] = {}
    cache: dict[str, str] = {}
    read = "\n".join(line for line in text.splitlines() if line.startswith(_READ))
    for family in text_string_to_metric_families(read):
        for sample in family.samples:
            if sample.name == "vllm:cache_config_info":
                cache = sample.labels
            elif sample.name.startswith("vllm:"):
                values[sample.name] = values.get(sample.name, 0) + sample.value
    return EngineMetrics(
        prompt_tokens=int(values.get("vllm:prompt_tokens_total", 0)),
        generation_tokens=int(values.get("vllm:generation_tokens_total", 0)),
        running=int(values.get("vllm:num_requests_running", 0)),
        waiting=int(values.get("vllm:num_requests_waiting", 0)),
        kv_used=values.get("vllm:kv_cache_usage_perc", 0.0),
        blocks=int(cache["num_gpu_blocks"]) - 1,  # vLLM 0.32 reserves one (block_pool.py, null_block)
        block_tokens=int(cache["block_size"]),
        preemptions=int(values.get("vllm:num_preemptions_total", 0)),
        token_gaps=int(values.get("vllm:inter_token_latency_seconds_count", 0)),
        token_gaps_s=values.get("vllm:inter_token_latency_seconds_sum", 0.0),
    )


class LocalEngine:
    """The HTTP API of this agent's engine. Every call raises aiohttp.ClientError or TimeoutError on failure."""

    def __init__(self, session: aiohttp.ClientSession, settings: ReplicaSettings) -> None:
        self.url = f"http://{settings.engine_host}:{settings.engine_port}"
        self._session = session
        self._base_model = settings.base_model
        self._embeds = settings.engine_task == "embed"
        self._headers = {"Authorization": f"Bearer {settings.engine_key.get_secret_value()}"}
        self._probe_timeout = aiohttp.ClientTimeout(total=settings.probe_timeout_s)
        self._scrape_timeout = aiohttp.ClientTimeout(total=5)

    async def probe(self) -> tuple[int, int]:
        """Generate one token, or embed one text. Returns (prompt tokens, generated tokens)."""
        path, body = "/v1/completions", {"prompt": "ok", "max_tokens": 1, "temperature": 0}
        if self._embeds:
            path, body = "/v1/embeddings", {"input": "ok"}
        async with self._session.post(
            self.url + path,
            json={"model": self._base_model, **body},
            headers=self._headers,
            timeout=self._probe_timeout,
            raise_for_status=True,
        ) as response:
            usage = (await response.json())["usage"]
            return int(usage["prompt_tokens"]), int(usage.get("completion_tokens") or 0)

    async def metrics(self) -> EngineMetrics:
        """Scrape the engine's counters and gauges."""
        async with self._session.get(
            f"{self.url}/metrics", timeout=self._scrape_timeout, raise_for_status=True
        ) as response:
            return parse_metrics(await response.text())
