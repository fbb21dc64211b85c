"""The settings page: complete, grouped by process, and clear about what production must set."""

import importlib
import re
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from core.settings import Fragment
from tenora.docs.settings_page import MUST_SET, PROCESSES, render_settings

ROOT = Path(__file__).parents[4]
PACKAGES = ("core", "control_plane", "data_plane", "adapters", "billing", "tenora")


def every_setting():
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*settings.py")):
            module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
            for kind in vars(module).values():
                if isinstance(kind, type) and issubclass(kind, Fragment) and kind.__module__ == module.__name__:
                    yield from kind.model_fields.items()


@pytest.fixture(scope="module")
def page():
    return render_settings()


def test_every_setting_is_in_exactly_one_table_of_settings(page):
    listed = re.findall(
        r"^\| `TENORA_(\w+)` \| (?:required|computed|empty|the host's name|`)", page, flags=re.MULTILINE
    )
    assert sorted(listed) == sorted({name.upper() for name, _ in every_setting()})


def test_every_setting_has_a_description():
    assert [name for name, info in every_setting() if not (info.description or "").strip()] == []


def test_production_must_set_every_setting_without_a_default():
    required = {
        name for name, info in every_setting() if info.default is PydanticUndefined and not info.default_factory
    }
    assert required - MUST_SET.keys() == set()
    assert MUST_SET.keys() - {name for name, _ in every_setting()} == set()


def test_every_process_has_a_section_with_its_command(page):
    for process in PROCESSES:
        assert f"## {process.title}\n\n`{process.command}`" in page
