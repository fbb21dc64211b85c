"""Adapters as PEFT itself writes them give, through the gateway, the log-probabilities of PEFT's own forward pass.

The engine computes in float32, so that the difference shows what serving changes and not how bfloat16 rounds. Adapters
are stored in bfloat16, which is the difference that remains. The same is then measured on an engine in bfloat16.
"""

import os
import statistics
from pathlib import Path

import openai
import pytest
from tokenizers import Tokenizer

from tenora.demo.control import ControlPlane
from tenora.stack.base_model import MODEL_ID
from tests.e2e.conftest import Platform, running_platform
from tests.fixtures.late_import import LateModule

peft, torch, transformers = LateModule("peft"), LateModule("torch"), LateModule("transformers")
pytestmark = [pytest.mark.e2e, pytest.mark.soak]

PROMPT = "The old lighthouse keeper looked at the sea and"
TOKENS = 32
DIFFERENCE_MAX = 0.01
NEVER_ENDS = {"0": -100, "2": -100}
ALL = "all-linear"
VARIANTS = {
    "plain": {"target_modules": ["q_proj", "v_proj"]},
    "all-linear": {"target_modules": ALL},
    "rsLoRA": {"target_modules": ALL, "use_rslora": True},
    "layers": {"target_modules": ["q_proj", "o_proj"], "layers_to_transform": [0, 3, 29]},
    "excluded": {"target_modules": ALL, "exclude_modules": ["down_proj", "k_proj"]},
    "rank pattern": {
        "target_modules": ["q_proj", "v_proj"], "rank_pattern": {"v_proj": 16, "layers.3.self_attn.q_proj": 4},
    },
    "alpha pattern": {"target_modules": ["q_proj", "v_proj"], "alpha_pattern": {"v_proj": 4, "q_proj": 32}},
    "both patterns": {
        "target_modules": ALL, "use_rslora": True, "rank_pattern": {"mlp.up_proj": 16}, "alpha_pattern": {"q_proj": 3},
    },
    "regex": {"target_modules": r".*\.layers\.\d+\.self_attn\.(q|v)_proj"},
    "full names": {"target_modules": [f"model.layers.{layer}.self_attn.q_proj" for layer in range(0, 30, 2)]},
}  # fmt: skip
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def make(checkpoint: Path, folder: Path, dtype: str, seed: int, **config: object) -> None:
    """Save an adapter with random weights that change the answers, as a trainer would."""
    torch.manual_seed(seed)
    base = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    model = peft.get_peft_model(base, peft.LoraConfig(r=8, lora_alpha=16, task_type="CAUSAL_LM", **config))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn_like(weight) * (0.05 if "lora_B" in name else 0.02))
                weight.data = weight.data.to(getattr(torch, dtype))
    model.save_pretrained(folder)


def token_ids(checkpoint: Path) -> dict[bytes, int]:
    """Token ids by the bytes that a token stands for, for a byte-level tokenizer."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(rest)}
    vocabulary = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).get_vocab(with_added_tokens=False)
    return {bytes(byte_of[char] for char in token): number for token, number in vocabulary.items()}


def reference(checkpoint: Path, folder: Path, prompt: list[int], answer: list[int]) -> list[float]:
    """PEFT's log-probability of each token of the answer."""
    base = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, folder)
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
    return [logits[len(prompt) - 1 + n, token].item() for n, token in enumerate(answer)]


def difference_from_peft(platform: Platform, checkpoint: Path, folder: Path, key: str, name: str) -> float:
    """Upload the folder, ask for an answer and return the mean difference from PEFT, in nats."""
    now = platform.status()
    control = ControlPlane(now["control_url"], key)
    control.upload_adapter(name, MODEL_ID, folder)
    control.close()
    with openai.OpenAI(base_url=now["gateway_url"] + "/v1", api_key=key, timeout=300) as sdk:
        done = sdk.completions.create(
            model=name, prompt=PROMPT, max_tokens=TOKENS, temperature=0, logprobs=1, logit_bias=NEVER_ENDS
        )
    shown = done.choices[0].logprobs
    ids = token_ids(checkpoint)
    answer = [ids[token.encode()] for token in shown.tokens]
    assert len(answer) == TOKENS
    prompt = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(PROMPT).ids
    expected = reference(checkpoint, folder, prompt, answer)
    return statistics.fmean(abs(one - other) for one, other in zip(shown.token_logprobs, expected, strict=True))


@pytest.fixture(scope="module")
def adapters(checkpoint, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("peft")
    wanted = {name: (config, "float32") for name, config in VARIANTS.items()}
    wanted |= {f"both patterns in {name}": (VARIANTS["both patterns"], dtype) for name, dtype in DTYPES.items()}
    for seed, (name, (config, dtype)) in enumerate(wanted.items()):
        make(checkpoint, folder / name, dtype, seed, **config)
    return {name: folder / name for name in wanted}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_variant_answers_as_peft_does(checkpoint, adapters, tmp_path_factory, no_replica, capsys, dtype):
    environment = {"TENORA_ENGINE_DTYPE": dtype, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    with running_platform(checkpoint, tmp_path_factory.mktemp("home"), **environment) as platform:
        _, key = platform.new_tenant("trainer", adapters=len(adapters), adapter_rank=16)
        found = {
            name: difference_from_peft(platform, checkpoint, folder, key, f"variant-{number}")
            for number, (name, folder) in enumerate(adapters.items())
        }
    with capsys.disabled():
        print(f"\n  mean difference from PEFT in nats, engine in {dtype}:")
        for name, difference in found.items():
            print(f"    {name}: {difference:.4f}")
    if dtype == "float32":
        assert {name: difference for name, difference in found.items() if difference > DIFFERENCE_MAX} == {}
