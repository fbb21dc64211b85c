"""Bad uploads, rows U20 to U28: well-formed weights that are not numbers, not complete, or of another model."""

import json
from collections.abc import Callable, Iterator

import numpy as np

from tests.corpus.uploads.item import BASE, CONFIG, Q0, RANK, WEIGHTS, Item, good_tensors, of_tensors
from tests.fixtures.uploads.peft_adapters import adapter_config, adapter_tensors, safetensors_bytes, tiny_base

Tensors = dict[str, np.ndarray]
_A, _B = Q0.format("A"), Q0.format("B")
_WIDE = np.full((RANK, 64), 0.01, np.float32)


def _item(
    row: str, what: str, code: str, change: Callable[[Tensors], Tensors], *says: str, dtype: str = "F32", **more: object
) -> Item:
    return Item(
        row=row, what=what, code=code, says=says,
        files=lambda: {WEIGHTS: safetensors_bytes(change(good_tensors()), dtype=dtype)}, **more,
    )  # fmt: skip


def _holding(name: str, value: float, at: tuple[int, int] = (1, 1)) -> Callable[[Tensors], Tensors]:
    def change(tensors: Tensors) -> Tensors:
        tensors[name][at] = value
        return tensors

    return change


def _replaced(name: str, weights: np.ndarray) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: weights}


def _renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {new if name == old else name: weights for name, weights in tensors.items()}


def _without(part: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: weights for name, weights in tensors.items() if part not in name}


def _half_bits(bits: int, dtype: str) -> Callable[[], dict[str, bytes]]:
    """The good adapter in a 16-bit type, with one element of these bits."""

    def files() -> dict[str, bytes]:
        found = []
        for name, weights in good_tensors().items():
            values = np.full(weights.shape, 0x2000, "<u2")
            if name == _A:
                values[0, 0] = bits
            found.append((name, dtype, list(weights.shape), values.tobytes()))
        return {WEIGHTS: of_tensors(found)}

    return files


def numbers() -> Iterator[Item]:
    """U20 to U22: values."""
    fix = "lower learning rate"
    finite = {"where": _A}
    yield _item("U20", "NaN in A", "weights_not_finite", _holding(_A, np.nan), "NaN", fix, **finite)
    yield _item("U20", "NaN in B", "weights_not_finite", _holding(_B, np.nan), "NaN", fix, where=_B)
    yield _item("U20", "NaN at the very end", "weights_not_finite", _holding(_A, np.nan, (-1, -1)), "NaN", fix)
    for what, value in {"infinity": np.inf, "minus infinity": -np.inf, "more than bfloat16 holds": 3.4e38}.items():
        yield _item("U21", what, "weights_not_finite", _holding(_A, value), "infinity", fix, **finite)
    for row, what, bits, dtype in (
        ("U20", "NaN in float16", 0x7E00, "F16"), ("U20", "NaN in bfloat16", 0x7FC0, "BF16"),
        ("U20", "a signalling NaN in bfloat16", 0xFF81, "BF16"),
        ("U21", "infinity in float16", 0x7C00, "F16"), ("U21", "infinity in bfloat16", 0xFF80, "BF16"),
    ):  # fmt: skip
        yield Item(row=row, what=what, code="weights_not_finite", says=("NaN", fix), files=_half_bits(bits, dtype),
                   where=_A)  # fmt: skip
    yield _item("U22", "a weight of -1e5", "weights_out_of_range", _holding(_A, -1e5), "1e+05", "10000",
                "train with a lower learning rate", where=_A)  # fmt: skip
    yield _item(
        "U22",
        "an absurd product of small weights",
        "weights_out_of_range",
        lambda tensors: {name: weights * 0 + 5_000 for name, weights in tensors.items()},
        "|A|",
        "train with a lower learning rate",
    )


def pairs() -> Iterator[Item]:
    """U23 to U25: both factors of each module, of the right shapes."""
    again, other = "save the adapter again", "the base model that it was trained on"
    yield _item("U23", "B without A", "tensor_missing", _without(_A), "missing", "save the adapter again", where=_A)
    yield _item("U23", "A without B", "tensor_missing", _without(_B), "missing", again, where=_B)
    yield _item("U23", "no B at all", "tensor_missing", _without("lora_B"), "missing", again, where=_B)
    yield _item("U23", "a module without tensors", "tensor_missing", _without("layers.1.self_attn.v_proj"),
                "adapter_config.json targets it", "layers_to_transform")  # fmt: skip
    of = np.zeros
    yield _item("U24", "A of rank 8", "rank_mismatch", _replaced(_A, of((8, 32), np.float32)), "rank 8", "r is 4",
                "files of one save", where=_A)  # fmt: skip
    yield _item("U24", "B of rank 16", "rank_mismatch", _replaced(_B, of((32, 16), np.float32)), "rank 16", "r is 4",
                where=_B)  # fmt: skip
    yield Item(row="U24", what="another rank in the config", code="rank_mismatch", says=("rank 4", "r is 8"), where=_A,
               files=lambda: {CONFIG: json.dumps(adapter_config(BASE, rank=8)).encode()})  # fmt: skip
    for what, name, weights in (
        ("a wide A", _A, _WIDE), ("an undersized A", _A, _WIDE[:, :16]), ("an undersized B", _B, _WIDE[:, :4]),
        ("a flat A", _A, of(128, np.float32)), ("an A of three dimensions", _A, of((1, RANK, 32), np.float32)),
        ("an A of one number", _A, of((), np.float32)),
        ("an undersized A of another rank", _A, of((2, 16), np.float32)),
    ):  # fmt: skip
        yield _item("U25", what, "shape_mismatch", _replaced(name, weights), "the base model needs", other, where=name)
    yield _item("U25", "a transposed A", "shape_mismatch", _replaced(_A, of((32, RANK), np.float32)), "is transposed",
                again.replace("the adapter", "it"), where=_A)  # fmt: skip
    yield Item(
        row="U25",
        what="an adapter of a larger base",
        code="shape_mismatch",
        says=("needs", other),
        where=_A,
        files=lambda: {WEIGHTS: safetensors_bytes(adapter_tensors(tiny_base(hidden=64), rank=RANK))},
    )


def modules() -> Iterator[Item]:
    """U26 to U28: which modules there are, and what may be on them."""
    for what, layer in {"layer 99": "layers.99", "layer 00": "layers.00", "layer 0x0": "layers.0x0"}.items():
        name = _A.replace("layers.0", layer)
        yield _item("U26", what, "module_unknown", _renamed(_A, name), "no linear module",
                    "the base model that it was trained on", where=name)  # fmt: skip
    linear = "train without it"
    for what, name in {
        "lm_head": "base_model.model.lm_head.lora_A.weight",
        "embeddings": "base_model.model.model.embed_tokens.lora_embedding_A",
        "a norm": "base_model.model.model.layers.0.input_layernorm.weight",
        "a saved module": "base_model.model.lm_head.modules_to_save.weight",
    }.items():
        yield _item("U27", f"tensors of {what}", "module_not_allowed", _replaced(name, _WIDE), linear, where=name)
    untargeted = _A.replace("q_proj", "o_proj")
    yield _item("U27", "a module that is not targeted", "module_not_allowed",
                lambda tensors: tensors | adapter_tensors(BASE, rank=RANK, modules=("o_proj",)), "add o_proj",
                "leave it out", where=untargeted)  # fmt: skip
    for what, name in {
        "DoRA": _A.replace("lora_A.weight", "lora_magnitude_vector"),
        "a LoRA bias": _B.replace("weight", "bias"),
        "IA3": "base_model.model.model.layers.0.self_attn.k_proj.ia3_l",
    }.items():
        yield _item("U38", f"tensors of {what}", "adapter_type_not_supported", _replaced(name, _WIDE[0]),
                    "only plain LoRA is served", where=name)  # fmt: skip
    as_peft = "save_pretrained"
    for what, name in {
        "an unknown wrapper": _A.replace("base_model.model.model", "actor.model"),
        "the base's own weights": _A.removeprefix("base_model.model.").replace("lora_A.", ""),
        "lower case": _A.replace("lora_A", "lora_a"),
        "a third factor": _A.replace("lora_A", "lora_C"),
    }.items():
        fix = "behind the prefix actor" if "wrapper" in what else as_peft
        yield _item("U18", f"named with {what}", "tensor_name_invalid", _renamed(_A, name), fix, where=name)
    doubled = _A.replace("lora_A", "lora_A.default")
    yield _item("U18", "two names of one weight", "tensor_name_invalid",
                lambda tensors: tensors | {doubled: tensors[_A]}, _A, doubled, "leave one", where=doubled)  # fmt: skip
    for of, name in {
        "MLX": "model.layers.0.self_attn.q_proj.lora_a",
        "kohya": "lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight",
    }.items():
        code = "format_not_allowed" if of == "MLX" else "adapter_type_not_supported"
        yield _item("U18", f"named by {of}", code, lambda _, name=name: {name: _WIDE}, of, where=name)
    yield _item("U28", "no tensor", "module_unknown", lambda _: {}, "no LoRA weight", "save the adapter again")
    yield _item("U28", "one unrelated tensor", "module_unknown", lambda _: {"x": _WIDE}, "no LoRA weight",
                "save the adapter again")  # fmt: skip


ITEMS = (*numbers(), *pairs(), *modules())
