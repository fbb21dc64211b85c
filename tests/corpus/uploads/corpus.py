"""The corpus of bad uploads, whole, and the good ones that show that the rules leave room for what PEFT writes."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator

from tests.corpus.uploads import configs, files, headers, tensors
from tests.corpus.uploads.item import BASE, CONFIG, RANK, WEIGHTS, Files, Item, good_files
from tests.fixtures.uploads.peft_adapters import adapter_config, adapter_tensors, safetensors_bytes

ITEMS: tuple[Item, ...] = (*headers.ITEMS, *tensors.ITEMS, *configs.ITEMS, *files.ITEMS)


def _named() -> Iterator[tuple[str, Item]]:
    of_row: Counter[str] = Counter()
    for item in ITEMS:
        of_row[item.row] += 1
        slug = re.sub(r"[^A-Za-z0-9]+", "-", item.what).strip("-")[:48]
        yield f"{item.row}.{of_row[item.row]}-{slug}", item


BY_ID: dict[str, Item] = dict(_named())
"""Each item by its name in a test run: row, number within the row, and what it is."""


def _one_of_each_way() -> Iterator[tuple[str, Item]]:
    known: set[tuple[str, str | None]] = set()
    for name, item in BY_ID.items():
        way = (item.code, item.file)
        if item.stage != "validation" or not item.is_judged_by_the_child:
            yield name, item
        elif way not in known:
            known.add(way)
            yield name, item


BY_WAY: dict[str, Item] = dict(_one_of_each_way())
"""Those whose way through the API differs: all that it refuses itself, and of what the child judges one a code and
file."""


def _good(
    dtype: str = "F32", *, rank: int = RANK, modules=("q_proj", "v_proj"), **config: object
) -> Callable[[], Files]:
    return lambda: {
        CONFIG: json.dumps(adapter_config(BASE, rank=rank, modules=modules, **config)).encode(),
        WEIGHTS: safetensors_bytes(adapter_tensors(BASE, rank=rank, modules=modules), dtype=dtype),
    }


GOOD: dict[str, Callable[[], Files]] = {
    "as PEFT writes it": good_files,
    "in float16": _good("F16"),
    "in bfloat16": _good("BF16"),
    "in float64": _good("F64"),
    "as state_dict() names it": lambda: {
        WEIGHTS: safetensors_bytes(
            {
                name.replace(".weight", ".default.weight"): each
                for name, each in adapter_tensors(BASE, rank=RANK).items()
            }
        )
    },
    "rank 1 on one kind": _good(rank=1, modules=("down_proj",)),
    "rank 64": _good(rank=64),
    "rsLoRA": _good(use_rslora=True),
    "a fractional alpha": _good(alpha=0.5),
    "an init that leaves the base alone": _good(init_lora_weights="Gaussian"),
    "a local path as its base": _good(base_model_name_or_path="/home/me/model"),
    "the class PEFT wrapped": _good(
        auto_mapping={
            "base_model_class": "LlamaForCausalLM",
            "parent_library": "transformers.models.llama.modeling_llama",
        }
    ),
    "a model card beside it": lambda: {"README.md": b"# mine", ".gitattributes": b"x"},
}


def seeds() -> list[bytes]:
    """Weights files of the corpus that a fuzzer of their header can start from: small ones, good and bad."""
    found = [item.content()[WEIGHTS] for item in headers.ITEMS] + [
        make()[WEIGHTS] for make in GOOD.values() if WEIGHTS in make()
    ]
    return sorted({content for content in found if len(content) <= 4096})
