"""Shows text of others as it is: for pages and terminals. What a reader could not see, or a terminal would obey, is
written as its code.
"""

import re
from typing import Final

_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
"""Control characters but tab and newline, marks without a width, and those that turn the direction of text."""


def visible(text: str) -> str:
    """The text with the code of each invisible character in its place."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
