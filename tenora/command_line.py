"""How every command of `tenora` prints: for people, or with --json as one JSON document, errors too."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import click

from core.errors import InvalidSettings
from core.visible_text import visible
from tenora.client import TenoraError

_FAILED_EXIT: Final = 1
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
            return _exit(ctx, _INVALID_SETTINGS_EXIT, {"message": str(error)}, begin="")
        except TenoraError as error:
            return _exit(ctx, _FAILED_EXIT, {"message": error.message, **error.facts})
        except click.ClickException as error:
            if isinstance(error, click.UsageError) and not wants_json():
                raise  # click shows the usage as well
            return _exit(ctx, error.exit_code, {"message": error.format_message()})


def _exit(ctx: click.Context, status: int, error: dict[str, Any], *, begin: str = "Error: ") -> NoReturn:
    if wants_json():
        click.echo(json.dumps({"error": error}, indent=2))
    else:
        click.echo(begin + visible(error["message"]), err=True)
    ctx.exit(status)


def wants_json() -> bool:
    """Whether the command that runs was given --json."""
    return bool(click.get_current_context().meta[__name__])


def show(value: Any, for_people: Callable[[], str | None]) -> None:
    """Print ``value``, which is JSON, with --json; else the text of ``for_people``, which may also print itself."""
    if wants_json():
        click.echo(json.dumps(value, indent=2))
    elif (text := for_people()) is not None:
        click.echo(visible(text))


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their widest cell: an id that a narrow terminal cuts off could not be copied."""
    cells = [heads, *(["-" if cell is None else visible(str(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)


def dollars(nanos: int) -> str:
    """Nanodollars as people read them."""
    return f"${nanos / 1e9:.4f}"
