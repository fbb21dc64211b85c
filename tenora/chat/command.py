"""`tenora chat`: one question, or a conversation at a terminal, with the answer as it arrives."""

import sys
from typing import Any

import click

from core.visible_text import visible
from tenora.client import Tenora
from tenora.command_line import json_option, show, wants_json
from tenora.control_access import Access, tenant_access, with_client


@click.command()
@click.argument("model")
@click.argument("prompt", required=False)
@click.option("--system", help="What the model should be, as the first message.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest answer.")
@click.option("--temperature", type=float, help="0 for the likeliest words.")
@click.option("--gateway-url", envvar="TENORA_GATEWAY_URL", help="The gateways; by default the profile's.")
@tenant_access
@json_option
def chat(
    access: Access,
    model: str,
    prompt: str | None,
    *,
    system: str | None,
    gateway_url: str | None,
    **options: float | None,
) -> None:
    """Ask MODEL, such as an adapter's name. Without PROMPT the question is standard input; at a terminal it is a
    conversation until Ctrl-D.
    """
    messages = [{"role": "system", "content": system}] if system else []
    given = {name: value for name, value in options.items() if value is not None}
    alone = prompt is not None or not sys.stdin.isatty() or wants_json()

    def talk(client: Tenora) -> None:
        while (text := prompt if prompt is not None else _question(alone=alone)) is not None:
            messages.append({"role": "user", "content": text})
            answer = _answer(client, model, messages, given)
            messages.append({"role": "assistant", "content": answer["content"]})
            show(answer, lambda: "")  # ends the line
            if alone:
                return

    with_client(access, talk, gateway_url=gateway_url)


def _question(*, alone: bool) -> str | None:
    """All of standard input, or the next line at a terminal; None at its end."""
    if alone:
        return sys.stdin.read()
    try:
        return input("> ")
    except EOFError:
        return None


def _answer(client: Tenora, model: str, messages: list[dict[str, str]], options: dict[str, Any]) -> dict[str, Any]:
    """The whole answer. For people, each piece is printed as it arrives."""
    whole: dict[str, Any] = {"id": None, "model": model, "content": "", "finish_reason": None, "usage": None}
    for event in client.chat(model, messages, **options):
        whole |= {name: event[name] for name in ("id", "model", "usage") if event.get(name)}
        for choice in event["choices"]:
            piece = choice["delta"].get("content") or ""
            whole["content"] += piece
            whole["finish_reason"] = choice["finish_reason"] or whole["finish_reason"]
            if not wants_json():
                click.echo(visible(piece), nl=False)
    return whole
