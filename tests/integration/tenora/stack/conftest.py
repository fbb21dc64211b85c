"""Stacks that are defined and not started."""

from collections.abc import Callable

import pytest

from tenora.settings import StackSettings
from tenora.stack.definition import Stack, replica_names
from tenora.stack.secrets_file import choose_ports, load_secrets


@pytest.fixture
def define(tmp_path, monkeypatch) -> Callable[[], Stack]:
    """Defines the stack of a home. Its Postgres is not created."""
    monkeypatch.setattr(Stack, "_postgres", lambda stack: stack._valkey.program)
    settings = StackSettings(home=tmp_path)
    return lambda: Stack(settings, load_secrets(settings.root), choose_ports(tmp_path, replica_names(1)))
