"""Tests that need a CUDA device and the GPU flavor of the installation."""

from pathlib import Path

import pytest

from tenora.stack.base_model import materialise


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    return materialise(Path(__file__).parents[2] / ".tenora", print)
