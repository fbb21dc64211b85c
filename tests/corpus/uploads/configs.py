"""Bad uploads, rows U29 to U39: invalid contents of ``adapter_config.json``."""

import json
from collections.abc import Iterator

from tests.corpus.uploads.item import BASE, CONFIG, RANK, Item
from tests.fixtures.uploads.peft_adapters import adapter_config

_ABSENT = object()


def _field(row: str, field: str, value: object, code: str, *says: str, **more: object) -> Item:
    """The good config with one field changed or, for ``_ABSENT``, left out."""
    shown = "absent" if value is _ABSENT else json.dumps(value)[:40]

    def files() -> dict[str, bytes]:
        config = adapter_config(BASE, rank=RANK) | {field: value}
        return {CONFIG: json.dumps({name: each for name, each in config.items() if each is not _ABSENT}).encode()}

    same = {"where": field, "says": (field, *says)}
    return Item(row=row, what=f"{field} {shown}", code=code, files=files, file=CONFIG, **(same | more))


def _text(row: str, what: str, code: str, text: bytes, *says: str, **more: object) -> Item:
    return Item(row=row, what=what, code=code, says=says, files=lambda: {CONFIG: text}, file=CONFIG, **more)


def _with(field: str, text: str) -> bytes:
    """The good config with one value written as it stands."""
    config = json.dumps(adapter_config(BASE, rank=RANK) | {field: "@"})
    return config.replace('"@"', text).encode()


def numbers() -> Iterator[Item]:
    """U29 to U32: rank and alpha."""
    yield _text("U29", "r NaN", "config_invalid", _with("r", "NaN"), "NaN", "r", "save_pretrained", where="r")
    for value in (1e-300, True, "8", 0, -1, 8.0, None, [8], _ABSENT):
        yield _field("U30", "r", value, "config_invalid", "whole number of at least 1")
    for text in ("Infinity", "1e400", "-Infinity"):
        yield _text("U31", f"lora_alpha {text}", "config_invalid", _with("lora_alpha", text), "not a JSON number",
                    "save_pretrained", where="lora_alpha")  # fmt: skip
    for value in (1e308, -1e30, 0, True, "16", None, _ABSENT, 65_537, 10**300, 1e-300):
        yield _field("U31", "lora_alpha", value, "config_invalid", "from 1/65536 to 65536")
    for value in (4096, 10**4000):
        yield _field("U32", "r", value, "rank_too_large", "allows 64", "train with r at most 64")
    yield _field("U32", "use_rslora", "yes", "config_invalid", "true or false")


def patterns() -> Iterator[Item]:
    """U33 and U34: names that are patterns, and patterns that would match modules."""
    for field in ("rank_pattern", "alpha_pattern"):
        for value in ({"q_proj": 0}, {"q_proj": "4"}, [4], "q_proj", {"q" * 600: 4}):
            yield _field("U33", field, value, "config_invalid", "write a")
    yield _field("U33", "alpha_pattern", {"(.*)*Z": 4}, "config_invalid", "literal module names")
    for value in (
        ["(.*)*Z"], [1], {}, [], None, _ABSENT, ["a" * 300], ["q_proj"] * 5000, [""], "(.*)*Z" * 5000,
    ):  # fmt: skip
        yield _field("U34", "target_modules", value, "config_invalid", "q_proj", "v_proj")
    for value in ([".*"], ".*" * 10_000):
        yield _field("U34", "exclude_modules", value, "config_invalid", "literal module names")
    for value in ("(.*)*Z", ["(.*)*Z"], ["layers", "h"]):
        yield _field("U34", "layers_pattern", value, "config_field_not_allowed", "set it to null")
    for value in (["0"], [0, 0.5], "0", [True], [10**6], [-1]):
        yield _field("U34", "layers_to_transform", value, "config_invalid", "layer numbers")
    yield _field("U26", "target_modules", ["layers.9.self_attn.q_proj"], "module_unknown", BASE.id)
    for value in (["q_proj", "lm_head"], ["query"], ["embed_tokens"], ["experts.0.up"]):
        yield _field("U27", "target_modules", value, "module_not_allowed", "LoRA may be on q_proj")


def other_fields() -> Iterator[Item]:
    """U35 and U36: fields that change the mathematics, or name code."""
    for field, value in (
        ("modules_to_save", ["lm_head"]), ("modules_to_save", ["classifier"]), ("trainable_token_indices", [1]),
        ("layer_replication", [[0, 1]]), ("fan_in_fan_out", True), ("target_parameters", ["experts"]),
        ("something_new", 3), ("vllm_lora_scaling_factor", 1000.0), ("arrow_config", {"a": 1}),
        ("loftq_config", {"loftq_bits": 4}), ("corda_config", {"a": 1}), ("ensure_weight_tying", True),
    ):  # fmt: skip
        yield _field("U35", field, value, "config_field_not_allowed", "not served", "remove it")
    for field, value in (
        ("megatron_core", "evil.module"), ("megatron_config", {"a": 1}), ("auto_map", {"AutoModel": "x.py"}),
        ("tokenizer_kwargs", {"trust_remote_code": True}), ("trust_remote_code", True),
    ):  # fmt: skip
        yield _field("U36", field, value, "config_field_not_allowed", "remove it")
    library = "transformers.models.llama.modeling_llama"
    for value in (
        {"base_model_class": "X", "parent_library": "os"},
        {"base_model_class": "X", "parent_library": "transformers..x"},
        {"base_model_class": "a.b", "parent_library": library},
        {"parent_library": library, "x": 1},
        "x",
        {},
    ):
        yield _field("U36", "auto_mapping", value, "config_field_not_allowed", "set it to null")


def methods() -> Iterator[Item]:
    """U37 and U38: another base model, and other methods than plain LoRA."""
    for value in ("other-7b", "someone/other-7b"):
        yield _field("U37", "base_model_name_or_path", value, "base_model_mismatch", BASE.hub_name, "upload it as")
    for value in (
        "meta-llama/Llama-3.1-8B", "https://example.com/m", "s3://b/m", "file:///etc/passwd",
    ):  # fmt: skip
        yield _field("U37", "base_model_name_or_path", value, "base_model_mismatch", BASE.hub_name, "write that name")
    for value in (7, ["x"], "x" * 5000):
        yield _field("U37", "base_model_name_or_path", value, "config_invalid", "write")
    plain = "only plain LoRA is served"
    for field, value in (
        ("use_dora", True), ("use_dora", "yes"), ("bias", "all"), ("bias", "lora_only"), ("bias", None), ("bias", ""),
        ("lora_bias", True), ("peft_type", "IA3"), ("peft_type", "lora"), ("use_qalora", True),
        ("use_bdlora", {"a": 1}), ("alora_invocation_tokens", [1]),
    ):  # fmt: skip
        yield _field("U38", field, value, "adapter_type_not_supported", plain)
    for value in (None, _ABSENT):
        yield _field("U38", "peft_type", value, "config_invalid", "LORA")
    yield _field("U38", "task_type", "SEQ_CLS", "adapter_type_not_supported", "CAUSAL_LM")
    for value in ("pissa", "olora", "corda", "loftq", "pissa_niter_4", 3):
        yield _field("U38", "init_lora_weights", value, "adapter_type_not_supported", "path_initial_model")


def texts() -> Iterator[Item]:
    """U39: anything but a small JSON object."""
    again = "save_pretrained"
    yield _text("U39", "10 MB", "config_too_large", b" " * 10_000_000, "65536 bytes", again)
    yield _text("U39", "50,000 objects deep", "config_too_large", b'{"a":' * 50_000, "65536 bytes", again)
    yield _text("U39", "50,000 lists deep", "config_invalid", b"[" * 50_000, "deep", again)
    yield _text("U39", "5,000 objects deep", "config_invalid", b'{"a":' * 5_000, "deep", again)
    for what, text in {
        "a list": b"[]",
        "null": b"null",
        "a brace": b"{",
        "spaces": b"   ",
        "bad UTF-8": b'{"r": "\xff"}',
        "UTF-16": '{"r": 8}'.encode("utf-16"),
        "a byte order mark": b"\xef\xbb\xbf{}",
        "a field twice": b'{"r": 8, "r": 16}',
        "an integer of 5,000 digits": b'{"r": %b}' % (b"9" * 5000),
        "a control character": b'{"r": "\x00"}',
        "YAML": b"r: 8\nlora_alpha: 16\n",
    }.items():
        yield _text("U39", what, "config_invalid", text, again)
    yield _field("U39", "x\n\u202e", "y\x00", "config_field_not_allowed", "remove it", where="x\\n\\u202e",
                 says=("x\\n\\u202e", "remove it"))  # fmt: skip


ITEMS = (*numbers(), *patterns(), *other_fields(), *methods(), *texts())
