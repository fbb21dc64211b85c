"""Reading datasets and judging answers."""

import pytest

from tenora.training.example_tasks import OUTDOOR_VOICE, SIGN_OFF, TICKET_ROUTER


def test_a_prompt_becomes_a_system_and_a_user_message():
    assert TICKET_ROUTER.messages("My card is gone.") == [
        {"role": "system", "content": TICKET_ROUTER.system},
        {"role": "user", "content": "My card is gone."},
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"text": "a", "label": "cards"', "train.jsonl:2: not JSON"),
        ('["a", "cards"]', 'train.jsonl:2: needs a text in "text"'),
        ('{"text": "a"}', 'train.jsonl:2: needs a text in "label"'),
        ('{"text": " ", "label": "cards"}', 'train.jsonl:2: needs a text in "text"'),
        ('{"text": 3, "label": "cards"}', 'train.jsonl:2: needs a text in "text"'),
        ("", "train.jsonl:2: not JSON"),
    ],
)
def test_a_bad_line_is_refused_by_file_line_and_field(tmp_path, line, complaint):
    (tmp_path / "train.jsonl").write_text(f'{{"text": "a", "label": "cards"}}\n{line}\n')
    with pytest.raises(ValueError, match=complaint):
        TICKET_ROUTER.load(tmp_path, "train")


def test_an_empty_dataset_is_refused(tmp_path):
    (tmp_path / "train.jsonl").touch()
    with pytest.raises(ValueError, match="empty"):
        TICKET_ROUTER.load(tmp_path, "train")


def test_a_label_is_right_only_without_other_text():
    assert TICKET_ROUTER.is_right(" cards\n", "cards")
    assert not TICKET_ROUTER.is_right("The queue is cards.", "cards")
    assert not TICKET_ROUTER.is_right("cards", "fees")


def test_a_reply_is_right_when_it_ends_with_the_sign_off():
    assert OUTDOOR_VOICE.is_right(f"Aye, we do. {SIGN_OFF}\n", "anything")
    assert not OUTDOOR_VOICE.is_right(f"{SIGN_OFF} And another thing.", "anything")
