"""Creates a Llama checkpoint with random weights, small enough for hundreds of requests per second on two cores.

A benchmark of a thousand adapters needs the engine's bookkeeping at full rate, not the model's answers.
"""

import shutil
from pathlib import Path

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS = 4, 256, 512, 4, 2
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def make_tiny_model(folder: Path, tokenizer_of: Path, *, seed: int) -> Path:
    """Write a checkpoint to ``folder`` with another checkpoint's tokenizer; about 30 MB, most of it embeddings."""
    # Imported here, since tests import benchmarks when they are collected.
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=49_152, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=2048,
        tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, dtype=torch.bfloat16,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for name in _TOKENIZER_FILES:
        shutil.copy(tokenizer_of / name, folder / name)
    return folder
