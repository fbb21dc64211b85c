"""Views are made of rows, and threads may use a Struct class for the first time at the same moment."""

import subprocess
import sys
from types import SimpleNamespace

import msgspec
import pytest

from core.struct_types import view_of

FIRST_USE_IN_THREADS = """
import sys, threading
from typing import Annotated
import msgspec
from core.struct_types import complete_struct_types

fields = "".join(f"    f{n}: 'Annotated[int, msgspec.Meta(ge=0)] | None' = None\\n" for n in range(30))
for n in range(20):
    inner = f"    inner: 'C{n - 1} | None' = None\\n" if n else ""
    exec(f"class C{n}(msgspec.Struct):\\n{fields}{inner}")
sys.setswitchinterval(1e-6)
complete_struct_types()
barrier = threading.Barrier(8)

def use():
    barrier.wait()
    assert msgspec.convert({"f1": 2, "inner": {"f1": 1}}, C19).inner.f1 == 1

threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_the_first_use_in_several_threads_is_safe_after_completion():
    subprocess.run([sys.executable, "-c", FIRST_USE_IN_THREADS], check=True, timeout=60)


class Inner(msgspec.Struct, frozen=True):
    rate: int


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    inner: Inner
    note: str = "none"


def test_a_view_has_the_fields_of_its_row_and_what_is_computed():
    row = SimpleNamespace(id="a", inner={"rate": 2}, secret="hidden")
    assert view_of(row, Shown) == Shown(id="a", inner=Inner(2))
    assert view_of(row, Shown, inner=Inner(3), note="b") == Shown(id="a", inner=Inner(3), note="b")


def test_a_row_whose_value_has_another_type_makes_no_view():
    with pytest.raises(msgspec.ValidationError):
        view_of(SimpleNamespace(id=1, inner={"rate": 2}), Shown)
