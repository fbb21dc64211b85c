"""Renders the page of billing scenarios: each numbered case of money and the tests that show it."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_HEAD: Final = """# Billing scenarios

Cases of money that users would notice, by number, and the tests that show them. A test carries its number as
`@pytest.mark.scenario(number)`; this page is made from the marks. Numbers that are missing have no test yet,
except 128: a source of tax that fails. Taxes come from the operator's own table of rates, so there is no such source.

| scenario | what the test shows | where |
|---|---|---|
"""


def render_scenarios() -> str:
    """The whole page."""
    shown: defaultdict[int, set[tuple[str, str]]] = defaultdict(set)
    for path in sorted((_ROOT / "tests").rglob("test_*.py")):
        for number, sentence in _marked(ast.parse(path.read_text())):
            shown[number].add((sentence, path.relative_to(_ROOT).as_posix()))
    return _HEAD + "".join(
        f"| {number} | {sentence} | `{where}` |\n"
        for number in sorted(shown)
        for sentence, where in sorted(shown[number])
    )


def _marked(module: ast.Module) -> Iterator[tuple[int, str]]:
    """The numbers in the marks of each test: its own, those of its parameters, and those of the whole module."""
    tables = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    of_all = _numbers(tables["pytestmark"]) if "pytestmark" in tables else []
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            sentence = node.name.removeprefix("test_").replace("_", " ")
            numbers = [*of_all]
            for mark in node.decorator_list:
                numbers += _numbers(mark)
                named = {each.id for each in ast.walk(mark) if isinstance(each, ast.Name)}
                numbers += [number for name in sorted(named & tables.keys()) for number in _numbers(tables[name])]
            yield from ((number, sentence) for number in numbers)


def _numbers(marks: ast.AST) -> list[int]:
    return [
        ast.literal_eval(number)
        for call in ast.walk(marks)
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "scenario"
        for number in call.args
    ]
