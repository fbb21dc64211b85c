"""Text of others is shown with the codes of what would be invisible, or would act on a terminal."""

import pytest

from core.visible_text import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07\x1b[2J", "\\u001b]0;owned\\u0007\\u001b[2J"),
        ("over\rwritten", "over\\u000dwritten"),
        ("a\x9bb\x7f", "a\\u009bb\\u007f"),
        ("exe\u202efdp.", "exe\\u202efdp."),
        ("z\u200bero", "z\\u200bero"),
        ("a\0b", "a\\u0000b"),
        ("two\nlines\tand ünïcode 🦙", "two\nlines\tand ünïcode 🦙"),
    ],
)
def test_what_acts_or_hides_is_written_as_its_code(text, shown):
    assert visible(text) == shown
    assert visible(shown) == shown
