"""The tokens of a text have the bytes of the text, distinct names, and offsets at which the text has them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from data_plane.engine.logprob_tokens import Vocabulary, named
from tests.fixtures.gateway.tiny_tokenizer import tokenizer_json


def byte_level() -> PreTrainedTokenizerFast:
    """As GPT-2's, Llama 3's, Qwen's and SmolLM's: an emoji is up to four tokens."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(tokenizer_json().decode()))


def byte_fallback() -> PreTrainedTokenizerFast:
    """As Llama 2's, Mistral's and Gemma's: what has no token is written in bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁the", "ü"]
    tokenizer = Tokenizer(
        models.BPE({piece: number for number, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in pieces[:3]])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


TOKENIZERS = {"byte level": byte_level(), "byte fallback": byte_fallback()}


def ids_of(tokenizer, text: str) -> list[int]:
    return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def written(tokenizer, ids: list[int]) -> list[str]:
    """The name of each token of a sequence, each sampled alone."""
    vocabulary = Vocabulary(tokenizer)
    return [named(vocabulary, [one], ids[max(0, at - 4) : at])[0] for at, one in enumerate(ids)]


texts = st.lists(
    st.sampled_from(["😀", "ü", "a", " the", " ", "\n", "日本", "👩‍👩‍👧", "\\xf0", "�"]), min_size=1, max_size=8
)


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@given(parts=texts)
def test_the_bytes_of_the_tokens_are_those_of_the_text_and_offsets_count_its_characters(tokenizer, parts):
    text = "".join(parts)
    ids = ids_of(tokenizer, text)
    tokens = written(tokenizer, ids)
    assert b"".join(token.encode() for token in tokens) == text.encode()
    offset = 0
    for token in tokens:
        assert len(token.encode()) == 0 or text.encode()[: len(text[:offset].encode())].decode() == text[:offset]
        if type(token) is str:
            assert text[offset:].startswith(token)
        offset += len(token)
    assert offset == len(text)


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
def test_every_token_of_a_vocabulary_has_its_own_name(tokenizer):
    every = list(range(len(tokenizer)))
    names = [str(name) for name in named(Vocabulary(tokenizer), every, [])]
    assert len(set(names)) == len(every)


@pytest.mark.parametrize(
    ("tokenizer", "text", "names"),
    [
        ("byte level", "😀", [r"\xf0", r"\x9f", r"\x98", r"\x80"]),
        ("byte fallback", "a😀", ["a", r"\xf0", r"\x9f", r"\x98", r"\x80"]),
        ("byte fallback", "\nü", ["\n", "ü"]),
        ("byte fallback", " a<s>", [" ", "a", "<s>"]),
    ],
)
def test_a_part_of_a_character_is_named_by_its_bytes(tokenizer, text, names):
    tokens = written(TOKENIZERS[tokenizer], ids_of(TOKENIZERS[tokenizer], text.replace(" ", "▁")))
    assert tokens == names


def test_a_sampled_token_that_is_also_among_the_likeliest_has_the_same_length_there():
    """VLLM keeps the last of two entries of one token."""
    tokenizer = TOKENIZERS["byte level"]
    first, *_, last = ids_of(tokenizer, "😀")
    names = named(Vocabulary(tokenizer), [first, last, first], [])
    assert [len(name) for name in names] == [0, 4, 0]
    assert [len(name) for name in named(Vocabulary(tokenizer), [last, last], ids_of(tokenizer, "😀")[:-1])] == [1, 1]


def test_a_token_that_the_text_leaves_out_has_no_bytes_and_no_length():
    tokenizer = TOKENIZERS["byte level"]
    (token,) = named(Vocabulary(tokenizer), [tokenizer.convert_tokens_to_ids("<|im_end|>")], [])
    assert (token, token.encode(), len(token)) == ("<|im_end|>", b"", 0)
    (row,) = named(Vocabulary(tokenizer), [len(tokenizer) + 5], [])
    assert (row, row.encode()) == (f"token_id:{len(tokenizer) + 5}", b"")


def test_a_byte_that_is_also_a_token_of_its_own_is_named_by_its_byte():
    tokenizer = TOKENIZERS["byte fallback"]
    letter, byte, other = (tokenizer.convert_tokens_to_ids(piece) for piece in ("a", "<0x61>", "<0x62>"))
    tokens = named(Vocabulary(tokenizer), [letter, byte, other], [])
    assert tokens == ["a", r"\x61", "b"]
    assert [token.encode() for token in tokens] == [b"a", b"a", b"b"]


def test_the_completions_api_has_openais_name_for_a_part_of_a_character():
    tokens = written(TOKENIZERS["byte level"], ids_of(TOKENIZERS["byte level"], "😀"))
    shown = [token.in_completions() for token in tokens]
    assert shown == [r"bytes:\xf0", r"bytes:\x9f", r"bytes:\x98", r"bytes:\x80"]
    assert [(token.encode(), len(token)) for token in shown] == [(token.encode(), len(token)) for token in tokens]
