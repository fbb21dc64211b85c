"""How every command of `tenora` prints: for people, or with --json as one JSON document, errors too."""

import json
from collections.abc import Callable
from typing import Any, Final, NoReturn

import click

from core.errors import InvalidSettings

_INVALID_SETTINGS_EXIT: Final = 2
json_option: Final = click.option("--json", is_flag=True, expose_value=False, help="Print JSON.")


class CommandLine(click.Group):
    """A group whose commands print JSON where ``--json`` is among the arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Look for --json first: arguments that cannot be parsed are an error in JSON as well."""
        ctx.meta[__name__] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. An error ends the program with a message and a status other than 0."""
        try:
            return super().invoke(ctx)
        except InvalidSettings as error:
            if not wants_json():
                click.echo(str(error), err=True)
                return ctx.exit(_INVALID_SETTINGS_EXIT)
            return self._exit(ctx, _INVALID_SETTINGS_EXIT, {"message": str(error)})
        except click.ClickException as error:
            if not wants_json():
                raise
            return self._exit(ctx, error.exit_code, {"message": error.format_message(), **getattr(error, "facts", {})})

    def _exit(self, ctx: click.Context, status: int, error: dict[str, Any]) -> NoReturn:
        click.echo(json.dumps({"error": error}, indent=2))
        ctx.exit(status)


def wants_json() -> bool:
    """Whether the command that runs was given --json."""
    return bool(click.get_current_context().meta[__name__])


def show(value: Any, for_people: Callable[[], object]) -> None:
    """Print ``value``, which is JSON, with --json; else call ``for_people``."""
    if wants_json():
        click.echo(json.dumps(value, indent=2))
    else:
        for_people()
