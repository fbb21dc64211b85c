"""The commands that pages name: each exists, and a value from a path stands in it as it is."""

import click
import pytest

from control_plane.console import commands
from tenora.cli import main


@pytest.mark.parametrize("command", commands.every())
def test_every_command_that_a_page_names_exists_with_its_options(command):
    words = command.split()[1:]
    found: click.Command = main
    while isinstance(found, click.Group) and words:
        found = found.commands[words.pop(0)]
    options = {option for each in found.params for option in each.opts}
    assert {word for word in words if word.startswith("--")} <= options
    arguments = [each for each in found.params if isinstance(each, click.Argument)]
    values = [
        word for at, word in enumerate(words) if not word.startswith("--") and not (at and words[at - 1][:2] == "--")
    ]
    assert len(values) <= len(arguments)


def test_a_form_and_a_page_name_the_command_of_what_they_show():
    assert commands.of_change("revoke_api_key", {"key_id": "key_1"}) == "tenora keys revoke key_1"
    assert commands.of_read("/api/v1/adapters/bot") == "tenora adapters show bot"
    assert commands.of_read("/api/v1/admin/tenants") == ""
    assert commands.of_change("void_invoice", {}) == ""
