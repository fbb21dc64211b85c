"""The scripts in docs/how-to/convert-an-adapter.md, run as they stand there: their results are accepted."""

import json
import re
from pathlib import Path

import pytest

from adapters.report import ReportBuilder
from adapters.validation.bounds import PlatformBounds, UploadLimits
from adapters.validation.validate import validate
from tests.fixtures.late_import import LateModule
from tests.fixtures.uploads.peft_adapters import adapter_tensors, tiny_base, write_adapter

torch = LateModule("torch")
safetensors_torch = LateModule("safetensors.torch")

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "convert-an-adapter.md"
BASE = tiny_base(hub_name="HuggingFaceTB/SmolLM2-135M-Instruct")
LIMITS = UploadLimits(plan_name="starter", rank_max=64, bytes_max=1_000_000)


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return re.findall(r"```python\n(.+?)```", PAGE.read_text(), re.DOTALL)


def accepted(folder):
    report = ReportBuilder()
    known = {BASE.hub_name.casefold(): BASE.id}
    found = validate(folder, base=BASE, known_bases=known, limits=LIMITS, bounds=PlatformBounds(), report=report)
    assert found is not None, report.build()
    return found


def tensors():
    return {name: torch.from_numpy(weights) for name, weights in adapter_tensors(BASE).items()}


def test_a_pickle_becomes_an_adapter(scripts, tmp_path):
    write_adapter(tmp_path, BASE)
    (tmp_path / "adapter_model.safetensors").unlink()
    torch.save(tensors(), tmp_path / "adapter_model.bin")
    exec(scripts[0], {})
    (tmp_path / "adapter_model.bin").unlink()
    assert len(accepted(tmp_path).pairs) == 4


def test_an_mlx_folder_becomes_the_same_adapter(scripts, tmp_path):
    mlx = {}
    for name, weights in tensors().items():
        module, side = name.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".lora_", 1)
        mlx[f"{module}.lora_{side.lower()}"] = weights.T.contiguous()
    (tmp_path / "mlx-adapter").mkdir()
    safetensors_torch.save_file(mlx, tmp_path / "mlx-adapter" / "adapters.safetensors")
    config = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": {"rank": 4, "dropout": 0.0, "scale": 20.0}}
    (tmp_path / "mlx-adapter" / "adapter_config.json").write_text(json.dumps(config))
    exec(scripts[1], {})
    found = accepted(tmp_path / "peft-adapter")
    assert found.config.scaling_of("model.layers.0.self_attn.q_proj", 4) == 20
    written = safetensors_torch.load_file(tmp_path / "peft-adapter" / "adapter_model.safetensors")
    assert {name: weights.tolist() for name, weights in written.items()} == {
        name: weights.tolist() for name, weights in tensors().items()
    }
