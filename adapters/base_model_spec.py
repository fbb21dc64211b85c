"""What the platform must know of a base model: its linear modules' shapes, its tokenizer and its chat template.

Read from an ordinary Hugging Face checkpoint folder, from JSON and tensor headers only; no weight is loaded.
"""

import re
from pathlib import Path
from typing import Annotated, Final

import msgspec

from adapters.report import FileRejected
from adapters.safetensors_header import HeaderBounds, read_header
from core import fields
from core.contracts.routes import ModelTask
from core.errors import Unprocessable
from core.fields import about
from core.kv_pages import PAGE_TOKENS

RANK_MAX: Final = 512
"""The largest rank vLLM 0.32 can serve (``MaxLoRARanks`` in its config)."""

BASE_MODEL_ID: Final = re.compile("^[a-z0-9][a-z0-9._-]{0,62}$")
HUB_NAME: Final = re.compile("^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$")
LINEAR_KINDS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

# A Hub name has one slash at most, so anything rooted, relative to a dot, deeper or with a backslash is a path.
_LOCAL_PATH: Final = re.compile(r"(?:/|\.{1,2}(?:/|$)|~|[A-Za-z]:[\\/]|[^/]*\\|[^/:]+/[^/]+/.).*", re.DOTALL)
_LINEAR: Final = re.compile(rf"(?P<module>.+\.layers\.\d+\..*?(?:{'|'.join(LINEAR_KINDS)}))\.weight")
_CHECKPOINT_BOUNDS: Final = HeaderBounds(header_bytes=64 << 20, tensors=1 << 20)
_JSON_BYTES_MAX: Final = 64 << 20
_BFLOAT16_BYTES: Final = 2

# Their errors name the fix, so they are compared by hand; the patterns are for the API's document.
BaseModelId = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": BASE_MODEL_ID.pattern})]
HubName = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": HUB_NAME.pattern})]
Dimension = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
Rank = Annotated[int, msgspec.Meta(ge=1, le=RANK_MAX)]


class BaseModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A base model. ``modules`` maps a full module name, as in ``model.layers.0.self_attn.q_proj``, to its
    (in_features, out_features); only modules in it may carry LoRA weights. ``context_tokens`` and ``rank_max`` are what
    its replicas serve, which may be less than the checkpoint could. ``rank_classes`` are its pools' largest ranks,
    ascending up to ``rank_max``; none means one pool of ``rank_max``.
    """

    id: Annotated[BaseModelId, fields.ID]
    hub_name: Annotated[HubName, fields.HUB_NAME]
    context_tokens: Annotated[Dimension, fields.CONTEXT_TOKENS]
    vocab_size: Annotated[Dimension, fields.VOCAB_SIZE]
    modules: Annotated[
        dict[str, tuple[Dimension, Dimension]],
        msgspec.Meta(min_length=1, max_length=100_000),
        about("Linear modules by full name, each with its input and output features."),
    ]
    tokenizer_json: Annotated[str, about("The model's tokenizer.json.")]
    chat_template: Annotated[str, about("Jinja template that turns messages into a prompt.")]
    bos_token: Annotated[str | None, about("Token that begins a text; null without one.")]
    eos_token: Annotated[str | None, about("Token that ends a text; null without one.")]
    rank_max: Annotated[Rank, fields.LARGEST_RANK] = RANK_MAX
    rank_classes: Annotated[
        tuple[Rank, ...], msgspec.Meta(max_length=16), about("Largest rank of each pool of replicas, ascending.")
    ] = ()
    task: Annotated[ModelTask, about("What it is for: generate, or embed, for embeddings.")] = "generate"

    @property
    def classes(self) -> tuple[int, ...]:
        """The largest rank of each pool, ascending; never empty."""
        return self.rank_classes or (self.rank_max,)


def describe(directory: Path, *, id: str, hub_name: str) -> BaseModelSpec:  # noqa: A002 - the spec's own field name
    """The spec of the checkpoint in ``directory``. Raises ``Unprocessable`` naming the file that is wrong."""
    config = _read_object(directory / "config.json")
    tokenizer_config = _read_object(directory / "tokenizer_config.json")
    return BaseModelSpec(
        id=id,
        hub_name=hub_name,
        context_tokens=_positive(config, "max_position_embeddings", directory),
        vocab_size=_positive(config, "vocab_size", directory),
        modules=_linear_modules(directory),
        tokenizer_json=_read_text(directory / "tokenizer.json"),
        chat_template=_chat_template(directory, tokenizer_config),
        bos_token=_special_token(tokenizer_config.get("bos_token")),
        eos_token=_special_token(tokenizer_config.get("eos_token")),
    )


def kind_of(module: str) -> str:
    """The last part of a module's name, such as ``q_proj``."""
    return module.rpartition(".")[2]


def is_local_path(name: str) -> bool:
    """Whether an adapter's config names its base model by a path on the disk of the machine that trained it."""
    return _LOCAL_PATH.fullmatch(name) is not None


def layer_of(module: str) -> int:
    """The number of the decoder layer a module of ``BaseModelSpec.modules`` belongs to."""
    parts = module.split(".")
    return int(parts[parts.index("layers") + 1])


def slot_bytes(spec: BaseModelSpec, rank_class: int) -> int:
    """The memory of one LoRA slot in an engine of this class, used or not: vLLM 0.32 allocates A and B of the full rank
    for every linear module (``lora/layers``, ``create_lora_weights``), two bytes per number.
    """
    return sum((inputs + outputs) * rank_class * _BFLOAT16_BYTES for inputs, outputs in spec.modules.values())


def kv_page_bytes(spec: BaseModelSpec) -> int:
    """Memory of one KV page (16 tokens) in a bfloat16 cache. Keys and values are as wide as the projections that
    produce them. Zero for a model whose cache cannot be derived from its modules.
    """
    widths = (outputs for module, (_, outputs) in spec.modules.items() if kind_of(module) in ("k_proj", "v_proj"))
    return sum(widths) * _BFLOAT16_BYTES * PAGE_TOKENS


def _linear_modules(directory: Path) -> dict[str, tuple[int, int]]:
    modules: dict[str, tuple[int, int]] = {}
    for shard in _shards(directory):
        try:
            tensors = read_header(shard, _CHECKPOINT_BOUNDS, file=shard.name)
        except FileRejected as refused:
            raise Unprocessable(f"{shard}: {refused.problem.message}", code="base_model_invalid") from refused
        for tensor in tensors:
            if (match := _LINEAR.fullmatch(tensor.name)) and len(tensor.shape) == 2:
                out_features, in_features = tensor.shape
                modules[match["module"]] = (in_features, out_features)
    if not modules:
        raise _invalid(f"{directory} holds none of the linear modules that take LoRA ({', '.join(LINEAR_KINDS)})")
    return dict(sorted(modules.items(), key=lambda item: (layer_of(item[0]), item[0])))


def _shards(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return [_existing(directory / "model.safetensors")]
    weight_map = _read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise _invalid(f"{index} has no weight_map that maps tensors to files; download the model again")
    return [_existing(directory / Path(name).name) for name in sorted(set(weight_map.values()))]


def _chat_template(directory: Path, tokenizer_config: dict[str, object]) -> str:
    jinja = directory / "chat_template.jinja"
    if jinja.exists():
        return _read_text(jinja)
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):  # several named templates; "default" is the one for plain chat
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    if not isinstance(template, str):
        raise _invalid(f"{directory} has no chat template; put one into chat_template.jinja")
    return template


def _special_token(value: object) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _positive(config: dict[str, object], field: str, directory: Path) -> int:
    value = config.get(field)
    if type(value) is not int or value <= 0:
        raise _invalid(f"{directory / 'config.json'}: {field} must be a positive integer, not {value!r}")
    return value


def _read_object(path: Path) -> dict[str, object]:
    try:
        return msgspec.json.decode(_read_text(path), type=dict[str, object])
    except msgspec.DecodeError as error:
        raise _invalid(f"{path} is not a JSON object: {error}") from error


def _read_text(path: Path) -> str:
    if _existing(path).stat().st_size > _JSON_BYTES_MAX:
        raise _invalid(f"{path} is larger than {_JSON_BYTES_MAX} bytes")
    return path.read_text("utf-8")


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise _invalid(f"{path} is missing; a base model is a directory in Hugging Face's checkpoint format")
    return path


def _invalid(message: str) -> Unprocessable:
    return Unprocessable(message, code="base_model_invalid")
