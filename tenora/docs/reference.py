"""Generates docs/reference/ from the code: every setting, metric, error code and request field, with its
description, and every billing scenario with its tests.

`python -m tenora.docs.reference` (or `make reference`) writes the pages; a test compares them with the code.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

from tenora.docs.error_examples import EXAMPLES
from tenora.docs.request_fields import requests_page
from tenora.docs.scenarios_page import render_scenarios
from tenora.docs.settings_page import render_settings

_ROOT: Final = Path(__file__).parents[2]
_PACKAGES: Final = ("core", "control_plane", "data_plane", "adapters", "billing", "tenora")
_METRIC_TYPES: Final = frozenset({"Counter", "Gauge", "Histogram", "Summary"})
_REPORTING: Final = frozenset({"refuse", "_refuse", "_refused", "problem", "_result"})
_CODE: Final = re.compile(r"[a-z]+(_[a-z]+)+")
PAGES: Final = ("settings", "metrics", "errors", "requests", "billing-scenarios")


@cache
def render(page: str) -> str:
    """The text of one page of ``PAGES``."""
    pages = {
        "settings": render_settings,
        "metrics": _metrics,
        "errors": _errors,
        "requests": requests_page,
        "billing-scenarios": render_scenarios,
    }
    return pages[page]()


def table(title: str, intro: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A page with one table."""

    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"

    return f"# {title}\n\n{intro}\n\n" + line(head) + "|" + "---|" * len(head) + "\n" + "".join(map(line, rows))


def _nodes() -> Iterator[tuple[Path, ast.AST]]:
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            if path.parent.name == "stripe_simulator":  # it speaks of Stripe's errors, which Stripe documents
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                yield path, node


def _calls(nodes: Iterable[tuple[Path, ast.AST]]) -> Iterator[tuple[Path, ast.Call]]:
    for path, node in nodes:
        if isinstance(node, ast.Call):
            yield path, node


def _text(node: ast.expr) -> str | None:
    """A literal text, with … where an f-string inserts a value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


def message_texts() -> set[str]:
    """Every literal text in the packages, with … where a value is inserted."""
    return {text for _, node in _nodes() if isinstance(node, ast.expr) and (text := _text(node))}


def _metrics() -> str:
    rows = set()
    for _, call in _calls(_nodes()):
        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
        if name in _METRIC_TYPES and len(call.args) >= 2:
            texts = [_text(argument) for argument in call.args[:2]]
            labels = [
                _text(each) or ""
                for node in call.args[2:3]
                if isinstance(node, ast.List | ast.Tuple)
                for each in node.elts
            ]
            if texts[0] is not None:
                rows.add((f"`{texts[0]}`", name.lower(), ", ".join(labels), texts[1] or ""))
    intro = "Prometheus metrics, served by every process on loopback at the port in `TENORA_METRICS_PORT`."
    return table("Metrics", intro, ("metric", "type", "labels", "meaning"), sorted(rows))


def _errors() -> str:
    rows: dict[str, tuple[set[str], list[str]]] = {}

    def note(code: str, path: Path, message: str | None) -> None:
        places, messages = rows.setdefault(f"`{code}`", (set(), []))
        places.add(f"`{path.relative_to(_ROOT).parts[0]}`")
        if message and message not in messages:
            messages.append(message)

    defaults: dict[str, str] = {}  # by error class; a class without its own code has that of its base
    nodes = list(_nodes())
    for _, node in nodes:
        if isinstance(node, ast.ClassDef):
            inherited = [defaults[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in defaults]
            if codes := [*(code for code, _ in _declared(node)), *inherited]:
                defaults[node.name] = codes[0]
    for path, call in _calls(nodes):
        keywords = {each.arg: each.value for each in call.keywords}
        default = defaults.get(getattr(call.func, "id", ""))
        if code := _text(keywords["code"]) if "code" in keywords else default:
            message = keywords.get("message", call.args[0] if call.args else None)
            note(code, path, _text(message) if message is not None else None)
        for code, said in _reported(call):
            note(code, path, said)
    for path, node in nodes:
        for code, said in (*_declared(node), *_assigned(node)):
            if not (isinstance(node, ast.ClassDef) and f"`{code}`" in rows):  # it is raised elsewhere
                note(code, path, said)
    intro = (
        "Stable error codes: in `code` of problem+json (control plane), in `error.code` of OpenAI's format (gateway),"
        " and in `report.problems[].code` of a rejected revision. The message is one example for the code."
        " A problem of a report names its file in `file`."
    )
    listed = [
        (code, ", ".join(sorted(places)), EXAMPLES.get(code.strip("`"), messages[0] if messages else ""))
        for code, (places, messages) in sorted(rows.items())
    ]
    return table("Error codes", intro, ("code", "raised in", "for example"), listed)


def _declared(node: ast.AST) -> Iterator[tuple[str, str | None]]:
    """The ``default_code`` of an error's class with its docstring, and the codes of a ``Code = Literal[...]``, of which
    each problem of a report has one.
    """
    if isinstance(node, ast.ClassDef):
        for line in node.body:
            target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
            if getattr(target, "id", "") == "default_code" and (code := _text(line.value)):  # type: ignore[attr-defined] # both kinds have one
                yield code, ast.get_docstring(node)
    elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "Code":
        literals = (each for each in ast.walk(node.value) if isinstance(each, ast.Constant))
        yield from ((code, None) for each in literals if (code := _text(each)))


def _assigned(node: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Codes that a branch assigns to ``code``, first in a tuple or alone, with the message that it assigns next."""
    body = getattr(node, "body", None)
    for statement, following in pairwise([*body, None] if isinstance(body, list) else ()):
        if not isinstance(statement, ast.Assign):
            continue
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            target, value = target.elts[0], value.elts[0]
        if getattr(target, "id", "") == "code" and (code := _text(value)):
            yield code, _text(following.value) if isinstance(following, ast.Assign) else None


def _reported(call: ast.Call) -> Iterator[tuple[str, str | None]]:
    """Code and message of a problem that goes into a report: the words that ``refuse`` and its like take in order."""
    if getattr(call.func, "id", getattr(call.func, "attr", "")) not in _REPORTING:
        return
    texts = [text for each in call.args if (text := _text(each))]
    # A code in the last place has no message: it is the reason of a metric.
    if texts and _CODE.fullmatch(texts[0]) and _text(call.args[-1]) != texts[0]:
        yield texts[0], next((text for text in texts if " " in text), None)


def main() -> None:
    """Write every page."""
    folder = _ROOT / "docs" / "reference"
    folder.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        (folder / f"{page}.md").write_text(render(page))
        print(f"docs/reference/{page}.md")


if __name__ == "__main__":
    main()
