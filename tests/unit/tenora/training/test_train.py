"""Packing and training, on a tiny model."""

import json
import math

import pytest

from tenora.training.example_tasks import TICKET_ROUTER, Example
from tenora.training.hyperparameters import Recipe
from tests.fixtures.late_import import LateModule

safetensors_torch = LateModule("safetensors.torch")
torch = LateModule("torch")
training = LateModule("tenora.training.train")
transformers = LateModule("transformers")

EXAMPLES = [
    Example("My card is gone.", "cards"),
    Example("Why did you charge me?", "fees"),
    Example("I cannot sign in to the app today.", "login"),
]


@pytest.fixture(autouse=True)
def one_thread():
    """A second thread would wait for the first, and for every other process of the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tokenizer(tiny_base):
    return transformers.AutoTokenizer.from_pretrained(tiny_base)


@pytest.fixture
def exact_model(tiny_base):
    return transformers.AutoModelForCausalLM.from_pretrained(
        tiny_base, dtype=torch.float32, attn_implementation="eager"
    )


def train_briefly(base, out, seed=3, epochs=20):
    seen = []
    counts = training.train(
        base, out, task=TICKET_ROUTER, examples=EXAMPLES, hub_name="someone/tiny", seed=seed,
        recipe=Recipe(epochs=epochs, learning_rate=1e-2, batch_examples=2, threads=1),
        progress=lambda *step: seen.append(step),
    )  # fmt: skip
    return counts, seen


def test_a_sequence_is_the_rendered_chat_and_then_the_answer_with_its_end(tokenizer):
    sequence = training.tokenize(tokenizer, TICKET_ROUTER, EXAMPLES[0])
    chat = (
        f"<|im_start|>system\n{TICKET_ROUTER.system}<|im_end|>\n<|im_start|>user\nMy card is gone.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tokenizer.decode(sequence.prompt) == chat
    assert tokenizer.decode(sequence.answer) == "cards<|im_end|>"


@pytest.mark.parametrize("prefix_tokens", [0, 1, None])
def test_a_packed_batch_has_the_loss_of_its_examples_one_by_one(tokenizer, exact_model, prefix_tokens):
    sequences = [training.tokenize(tokenizer, TICKET_ROUTER, example) for example in EXAMPLES]
    if prefix_tokens is None:
        prefix_tokens = training.shared_prefix_tokens([sequence.prompt for sequence in sequences])
        assert prefix_tokens > len(TICKET_ROUTER.system)
    losses = []
    for sequence in sequences:
        logits = exact_model(torch.tensor([sequence.prompt + sequence.answer])).logits[0]
        predicted = logits[len(sequence.prompt) - 1 : -1]
        losses += torch.nn.functional.cross_entropy(predicted, torch.tensor(sequence.answer), reduction="none").tolist()

    together = training.answer_loss(exact_model, training.pack(sequences, prefix_tokens, torch.float32))

    # In float32, so that only the order of sums differs, which moved the loss by 4e-8 of it.
    assert together.item() == pytest.approx(math.fsum(losses) / len(losses), rel=1e-5)


def test_the_shared_prefix_never_takes_a_whole_prompt():
    assert training.shared_prefix_tokens([[1, 2, 3], [1, 2, 4, 5]]) == 2
    assert training.shared_prefix_tokens([[1, 2, 3], [1, 2, 3]]) == 2
    assert training.shared_prefix_tokens([[1, 2], [3, 4]]) == 0


@pytest.mark.parametrize(("capabilities", "dtype"), [({"amx_bf16": True}, "bfloat16"), ({}, "float32")])
def test_a_cpu_without_amx_trains_in_float32(monkeypatch, capabilities, dtype):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert training.fastest_dtype() == getattr(torch, dtype)


def test_training_saves_what_peft_saves_and_learns(tiny_base, tmp_path):
    counts, seen = train_briefly(tiny_base, tmp_path)

    assert [step for step, _, _ in seen] == list(range(1, 41))
    assert {steps for _, steps, _ in seen} == {counts.steps} == {40}
    # The most an adapter can achieve on random weights: four seeds gave 0.91 to 0.92 in bfloat16 on a CPU with AMX.
    assert counts.final_loss < 0.95 * seen[0][2]
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["base_model_name_or_path"]) == ("LORA", 8, "someone/tiny")
    tensors = safetensors_torch.load_file(tmp_path / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    assert len(tensors) == 2 * 7 * 2  # A and B of seven modules in two layers
    assert all(tensor.abs().sum() > 0 for tensor in tensors.values())
    assert str(tiny_base) not in (tmp_path / "README.md").read_text()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tiny_base, tmp_path):
    """On one machine and one thread, where sums have one order. Bytes of another machine are not promised."""
    for folder, seed in (("first", 3), ("again", 3), ("other", 4)):
        train_briefly(tiny_base, tmp_path / folder, seed, epochs=3)
    first, again, other = (
        (tmp_path / folder / "adapter_model.safetensors").read_bytes() for folder in ("first", "again", "other")
    )
    assert first == again
    assert first != other
