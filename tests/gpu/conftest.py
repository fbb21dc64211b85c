"""Tests that need a CUDA device and the GPU flavor of the installation."""

from pathlib import Path

import pytest

from tenora.stack.base_model import materialize


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    return materialize(Path(__file__).parents[2] / ".tenora", print)
