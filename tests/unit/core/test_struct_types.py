"""Threads may use a Struct class for the first time at the same moment."""

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("_attempt", range(3))
def test_the_first_use_in_several_threads_is_safe_after_completion(_attempt):
    subprocess.run([sys.executable, "-c", FIRST_USE_IN_THREADS], check=True, timeout=60)
