"""Struct classes of msgspec: views that are made of rows, and classes that are completed before threads share them.

msgspec builds what it knows of a Struct class at the first use of it. Two threads that use a class for the first time
at the same moment can read it half built, and the process ends with a segmentation fault (msgspec 0.22).
"""

import contextlib
from typing import TypeVar

import msgspec

View = TypeVar("View", bound=msgspec.Struct)


def view_of(row: object, view: type[View], **computed: object) -> View:
    """The view of a row: its attributes of the view's names, and the fields that are computed or named otherwise."""
    if not computed:
        return msgspec.convert(row, view, from_attributes=True)
    stored = {
        name: getattr(row, name) for name in view.__struct_fields__ if name not in computed and hasattr(row, name)
    }
    return msgspec.convert(stored | computed, view)


def complete_struct_types() -> None:
    """Complete every Struct class that is imported. A process calls it before it starts threads."""
    waiting: list[type[msgspec.Struct]] = msgspec.Struct.__subclasses__()
    while waiting:
        struct_type = waiting.pop()
        waiting += struct_type.__subclasses__()
        with contextlib.suppress(TypeError, NameError):  # one that is only encoded, which needs none of it
            msgspec.json.Decoder(struct_type)
