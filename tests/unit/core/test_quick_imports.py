"""A fresh interpreter, because this one has imported everything."""

import subprocess
import sys

CODE = """
import gc, sys
from core.quick_imports import quick_imports
with quick_imports():
    assert not gc.isenabled()
    import redis, structlog
assert gc.isenabled() and gc.get_freeze_count() > 0
print([name for name in ("rich", "opentelemetry.sdk") if name in sys.modules])
import rich
"""


def test_a_program_loads_no_library_that_only_its_libraries_would_like_and_may_load_it_later():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
