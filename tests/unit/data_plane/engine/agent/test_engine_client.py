"""vLLM's metrics page is read by metric name; the page of an engine that is not ready is refused."""

import pytest

from data_plane.engine.agent.engine_client import parse_metrics

PAGE = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="1456"} 1.0
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 49.0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="m"} 29.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{engine="0",model_name="m"} 7.0
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="m"} 20.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 28.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 0.7
"""


def test_the_numbers_are_read():
    metrics = parse_metrics(PAGE)
    assert (metrics.prompt_tokens, metrics.generation_tokens) == (49, 29)
    assert (metrics.running, metrics.waiting, metrics.kv_used, metrics.preemptions) == (3, 2, 0.25, 7)
    assert (metrics.token_gaps, metrics.token_gaps_s) == (28, 0.7)
    assert (metrics.blocks, metrics.block_tokens) == (1455, 32), "vLLM reserves one null block"


def test_a_page_without_the_cache_size_means_not_up_yet():
    with pytest.raises(KeyError):
        parse_metrics("# nothing\n")
