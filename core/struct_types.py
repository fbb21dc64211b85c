"""Completes what msgspec knows of Struct classes before threads share them.

msgspec builds it at the first use of a class. Two threads that use a class for the first time at the same moment can
read it half built, and the process ends with a segmentation fault (msgspec 0.22).
"""

import contextlib

import msgspec


def complete_struct_types() -> None:
    """Complete every Struct class that is imported. A process calls it before it starts threads."""
    waiting: list[type[msgspec.Struct]] = msgspec.Struct.__subclasses__()
    while waiting:
        struct_type = waiting.pop()
        waiting += struct_type.__subclasses__()
        with contextlib.suppress(TypeError, NameError):  # one that is only encoded, which needs none of it
            msgspec.json.Decoder(struct_type)
