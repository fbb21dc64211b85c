"""Adapters that PEFT saves are accepted. After re-serialization they are the same model to PEFT and fit for vLLM."""

import copy

import pytest

from adapters.base_model_spec import LINEAR_KINDS, BaseModelSpec
from adapters.report import ReportBuilder
from adapters.validation.bounds import PlatformBounds, UploadLimits
from adapters.validation.normalize import normalize
from adapters.validation.validate import validate
from tests.fixtures.late_import import LateModule
from tests.fixtures.uploads.peft_adapters import tiny_base

peft = LateModule("peft")
vllm_config = LateModule("vllm.config.lora")
peft_helper = LateModule("vllm.lora.peft_helper")
safetensors_torch = LateModule("safetensors.torch")
torch = LateModule("torch")
torch_checkpoint = LateModule("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")
transformers = LateModule("transformers")

LIMITS = UploadLimits(plan_name="starter", rank_max=64, bytes_max=10_000_000)
TOKENS = [[1, 50, 60, 70, 80, 90]]


def build_base():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    )
    return transformers.LlamaForCausalLM(config).eval()


def trained(**options):
    """A PEFT model whose adapter has an effect: B is not zero."""
    model = peft.get_peft_model(build_base(), peft.LoraConfig(**{"r": 8, "lora_alpha": 16} | options))
    torch.manual_seed(1)
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.2)
    return model.eval()


def outputs(model):
    with torch.no_grad():
        return model(torch.tensor(TOKENS)).logits


@pytest.fixture(scope="module")
def base() -> BaseModelSpec:
    found = {
        name: (module.in_features, module.out_features)
        for name, module in build_base().named_modules()
        if name.endswith(LINEAR_KINDS)
    }
    spec = tiny_base()
    assert found == spec.modules
    return spec


@pytest.mark.parametrize(
    ("options", "rank"),
    [
        ({"target_modules": list(LINEAR_KINDS), "task_type": "CAUSAL_LM", "lora_dropout": 0.05}, 8),
        ({"target_modules": ["down_proj"], "use_rslora": True, "init_lora_weights": "gaussian"}, 8),
        ({"target_modules": ["q_proj", "o_proj"], "layers_to_transform": [1]}, 8),
        ({"target_modules": ["q_proj", "k_proj"], "exclude_modules": ["layers.0.self_attn.k_proj"]}, 8),
        ({"target_modules": ["q_proj", "k_proj"], "rank_pattern": {r"layers\.[01]\..*k_proj": 16}}, 16),
        ({"target_modules": ["q_proj"], "alpha_pattern": {"^model.layers.0.self_attn.q_proj": 64}}, 8),
        (
            {
                "target_modules": list(LINEAR_KINDS),
                "rank_pattern": {"down_proj": 2, "layers.1.self_attn.q_proj": 12},
                "alpha_pattern": {"layers.1.self_attn.q_proj": 7, "q_proj": 40, "up_proj": 1},
            },
            12,
        ),
        ({"target_modules": ["q_proj", "o_proj"], "rank_pattern": {"o_proj": 5}, "use_rslora": True}, 8),
        ({"target_modules": r".*(q_proj|up_proj)", "exclude_modules": r".*layers\.0\..*"}, 8),
    ],
    ids=["everything", "rslora", "one-layer", "excluded", "rank-pattern", "anchored", "both", "rslora-ranks", "regex"],
)
def test_an_adapter_saved_by_peft_is_served_as_the_same_model(tmp_path, base, options, rank):
    model = trained(**options)
    model.save_pretrained(tmp_path / "saved")
    assert rank_as_served(tmp_path, base, model) == rank


def rank_as_served(tmp_path, base, model) -> int:
    """The rank as it is served of an adapter that was saved in the folder ``saved``. It must be the same model."""
    (tmp_path / "ours").mkdir()
    report = ReportBuilder()
    accepted = validate(
        tmp_path / "saved",
        base=base,
        known_bases={base.id.casefold(): base.id},
        limits=LIMITS,
        bounds=PlatformBounds(),
        report=report,
    )
    assert accepted is not None, report.build()
    manifest = normalize(accepted, tmp_path / "saved", tmp_path / "ours", base)

    expected, plain = outputs(model), outputs(build_base())
    served = peft.PeftModel.from_pretrained(build_base(), tmp_path / "ours").eval()
    found = outputs(served)
    effect, error = (expected - plain).abs().max(), (found - expected).abs().max()
    assert effect > 0.005, "the adapter has an effect"
    # Both are computed in float32; only A and B in bfloat16 differ. The difference was at most 0.006 of the effect.
    assert error < effect * 0.02, "two roundings to 8 bits of mantissa"

    helper = peft_helper.PEFTHelper.from_local_dir(str(tmp_path / "ours"), max_position_embeddings=2048)
    helper.validate_legal(vllm_config.LoRAConfig(max_lora_rank=64))
    assert helper.r == manifest.rank
    tensors = safetensors_torch.load_file(tmp_path / "ours" / "adapter_model.safetensors")
    assert {weights.dtype for weights in tensors.values()} == {torch.bfloat16}
    return manifest.rank


@pytest.mark.parametrize("wrapper", ["none", "compiled in parallel", "compiled inside", "checkpointed in float64"])
def test_a_state_dict_of_a_wrapped_model_is_served_as_the_same_model(tmp_path, base, wrapper):
    model = wrapped = trained(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    if wrapper == "compiled in parallel":
        wrapped = torch.nn.DataParallel(torch.compile(model, backend="eager"))
    elif wrapper == "compiled inside":
        model.base_model.model.model = torch.compile(model.base_model.model.model, backend="eager")
    elif wrapper == "checkpointed in float64":
        wrapped = copy.deepcopy(model).double()
        layers = wrapped.base_model.model.model.layers
        layers[0].self_attn = torch_checkpoint.CheckpointWrapper(layers[0].self_attn)
    tensors = {name: weights for name, weights in wrapped.state_dict().items() if "lora_" in name}
    model.peft_config["default"].save_pretrained(tmp_path / "saved")
    safetensors_torch.save_file(tensors, tmp_path / "saved" / "adapter_model.safetensors")
    assert rank_as_served(tmp_path, base, model) == 8
