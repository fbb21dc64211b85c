"""Imports at the start of a process, a third faster: a process of the platform imports a thousand modules."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

_UNUSED: Final = ("rich", "opentelemetry.sdk")
"""structlog imports the first for colored logs and redis-py the second for metrics of its own, where they are
installed. Tenora uses neither.
"""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Around the imports of a program. What they make is no garbage, so no collection looks for it, now or later."""
    modules = cast(dict[str, Any], sys.modules)
    unused = [name for name in _UNUSED if name not in modules]
    modules.update(dict.fromkeys(unused))  # None makes an import fail as if the library were not installed
    gc.disable()
    try:
        yield
    finally:
        for name in unused:
            del modules[name]
        gc.freeze()
        gc.enable()
