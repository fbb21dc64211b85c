"""Explains a tensor's name that is no LoRA weight of a module that can be served: what it is, and what helps. Pure."""

import re
from typing import Final

from adapters.base_model_spec import LINEAR_KINDS, BaseModelSpec
from adapters.report import Code
from adapters.validation.tensor_names import parse_lora_name, plain_name, without_wrappers

TRAINED_ON: Final = "upload the adapter for the base model that it was trained on"
FROM_MLX: Final = (
    "mlx-lm has no converter to PEFT's format: transpose lora_a and lora_b, rename them, and write r and lora_alpha; "
    "the how-to page convert-an-adapter has the script"
)
EXTRACT: Final = (
    "extract a LoRA from it with mergekit-extract-lora, or upload the adapter that was saved before it was merged"
)
_PLAIN: Final = "only plain LoRA is served: train it again as plain LoRA"
_SAVE: Final = "save the LoRA weights with PEFT's save_pretrained"
_LINEAR_ONLY: Final = f"LoRA may be on {', '.join(LINEAR_KINDS)} only; train without it"

METHODS: Final = {
    "adamss": "AdaMSS", "boft": "BOFT", "bone": "Bone", "c3a": "C3A", "delora": "DeLoRA", "fourierft": "FourierFT",
    "gralora": "GraLoRA", "hada": "LoHa", "hira": "HiRA", "hra": "HRA", "ia3": "IA3", "ln_tuning": "LN tuning",
    "lokr": "LoKr", "miss": "MiSS", "oft": "OFT", "poly": "Poly", "randlora": "RandLoRA", "road": "RoAd",
    "shira": "SHiRA", "trainable_tokens": "trainable tokens", "vblora": "VB-LoRA", "vera": "VeRA",
}  # fmt: skip
_METHOD: Final = re.compile(rf".*?(?:^|[._])(?P<method>{'|'.join(METHODS)})_.*")

_IMAGE: Final = "belongs to a LoRA of an image model (kohya, diffusers); only adapters of language models are served"
_PROMPT: Final = f"belongs to prompt or prefix tuning; {_PLAIN}"
_MLX: Final = f"is a name of MLX's format; {FROM_MLX}"
_TORCHTUNE: Final = (
    "is a name as torchtune writes it; upload the adapter_model.safetensors that its FullModelHFCheckpointer saves, or "
    f"{_SAVE}"
)
_FLAT: Final = (
    "is a piece of a model that FSDP flattened; save with FULL_STATE_DICT (fsdp_state_dict_type in accelerate)"
)
_NO_LORA: Final = (
    f"is no LoRA weight, and the file has none; if this is a full model, {EXTRACT}; otherwise save the adapter again "
    "with PEFT's save_pretrained"
)
_QUANTIZED: Final = f"belongs to a quantized base model; {_SAVE}, which leaves the base model out"
_VALUE_HEAD: Final = (
    "belongs to TRL's value head; save the model inside: model.pretrained_model.save_pretrained(folder)"
)
_WHOLE: Final = (
    "is a whole weight of the base model, which PEFT saves when the vocabulary grew or the module was trained; save "
    "with save_embedding_layers=False if it was not trained, else train without it"
)
_NOT_PEFT: Final = f"is not a name that PEFT writes (base_model.model.<module>.lora_A.weight); {_SAVE}"

_OTHER: Final[Code] = "adapter_type_not_supported"

# The first pattern that is found decides.
_FORMATS: Final[tuple[tuple[str, Code, str], ...]] = (
    (r"^lora_(unet|te\d?|transformer)_|lora_(down|up)\.weight$|\.lora\.(down|up)\.", _OTHER, _IMAGE),
    (r"\.alpha$|^(unet|text_encoder(_\d)?)\.|(transformer|down|up|mid)_blocks?\.", _OTHER, _IMAGE),
    (r"lora_magnitude_vector", _OTHER, f"belongs to DoRA; {_PLAIN} (use_dora false)"),
    (r"lora_[AB]\.(\w+\.)?bias$", _OTHER, f"is a bias of LoRA; {_PLAIN} (lora_bias false)"),
    (r"\.lora_(E|ranknum)\b", _OTHER, f"belongs to AdaLoRA; {_PLAIN}"),
    (r"(^|\.)(prompt_(embeddings|encoder)|adaption_\w+|prefix_\w+)\b", _OTHER, _PROMPT),
    (r"\.lora_[ab]$", "format_not_allowed", _MLX),
    (r"\.lora_[ab]\.weight$", "tensor_name_invalid", _TORCHTUNE),
    (r"flat_param", "tensor_name_invalid", _FLAT),
)  # fmt: skip
_BESIDE_LORA: Final[tuple[tuple[str, Code, str], ...]] = (
    (r"\.(absmax|\w*quant_map|nested_absmax|quant_state\..+|SCB|weight_format|qweight|qzeros|g_idx|\w*scales?)$",
     "module_not_allowed", _QUANTIZED),
    (r"(^|\.)v_head\.", "module_not_allowed", _VALUE_HEAD),
    (r"modules_to_save", "module_not_allowed", f"was trained as a whole (modules_to_save); {_LINEAR_ONLY}"),
    (r"(^|\.)(lm_head|embed_tokens)\.weight$", "module_not_allowed", _WHOLE),
    (r"(^|[._])(lm_head|embed_tokens|lora_embedding_[AB]|\w*norm|score|classifier|vision\w*|visual|audio\w*)([._]|$)",
     "module_not_allowed", f"changes a module that cannot be served; {_LINEAR_ONLY}"),
)  # fmt: skip


def explain(name: str, base: BaseModelSpec, plain_modules: frozenset[str], *, has_lora: bool) -> tuple[Code, str]:
    """The code and the text for a name that has no place. ``plain_modules`` are the plain names of the base model's
    modules; ``has_lora`` says whether the file has LoRA weights at all.
    """
    bare = without_wrappers(name)
    if found := _find(_FORMATS, bare):
        return found
    if method := _METHOD.fullmatch(bare):
        fix = f"{_PLAIN}, or convert it with peft.save_as_lora where PEFT can"
        return "adapter_type_not_supported", f"belongs to {METHODS[method['method']]}; {fix}"
    if not has_lora:
        return "module_unknown", _NO_LORA
    return _find(_BESIDE_LORA, bare) or _explain_module(name, base, plain_modules)


def _find(table: tuple[tuple[str, Code, str], ...], name: str) -> tuple[Code, str] | None:
    return next(((code, text) for pattern, code, text in table if re.search(pattern, name)), None)


def _explain_module(name: str, base: BaseModelSpec, plain_modules: frozenset[str]) -> tuple[Code, str]:
    """Beside LoRA weights: one whose module the base model does not have, at least not under this path, or a weight of
    the base model.
    """
    parsed = parse_lora_name(name)
    if parsed is None:
        is_base = "lora_" not in name and name.endswith((".weight", ".bias"))
        text = f"is a weight of the base model; {_SAVE}, which leaves the base model out" if is_base else _NOT_PEFT
        return "tensor_name_invalid", text
    parts = plain_name(parsed[0]).split(".")
    for start in range(1, len(parts)):
        if ".".join(parts[start:]) in plain_modules:
            prefix = ".".join(parts[:start])
            return "tensor_name_invalid", (
                f"has a module of {base.id} behind the prefix {prefix}; rename it without the prefix if this is your "
                f"trainer's wrapper, otherwise {TRAINED_ON}"
            )
    return "module_unknown", f"is on a module that {base.id} does not have, no linear module of it; {TRAINED_ON}"
