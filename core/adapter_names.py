"""The names under which engines know adapters: ``<adapter id>@<digest>``, immutable and never chosen by a tenant.

Pure functions over text. Whether such an adapter exists, and which key may call it, is decided elsewhere.
"""

import re
from typing import Final

from core.ids import is_id

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def engine_name(adapter_id: str, digest: str) -> str:
    """The name of one revision's weights under their adapter."""
    return f"{adapter_id}@{digest}"


def is_engine_name(text: str) -> bool:
    """Whether ``text`` has the shape of such a name."""
    return is_id(adapter_of(text), "ad") and _DIGEST.fullmatch(digest_of(text)) is not None


def adapter_of(name: str) -> str:
    """The adapter id in an engine name."""
    return name.partition("@")[0]


def digest_of(name: str) -> str:
    """The digest in an engine name; "" for what is none."""
    return name.partition("@")[2]
