"""Reads Stripe's form encoding: ``lines[0][amount]=5`` becomes a tree of dicts with strings at its leaves.

What the names and values mean is in ``tenora.stripe_simulator.parameters``.
"""

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import parse_qsl

from tenora.stripe_simulator.errors import ApiError

PAIRS_MAX: Final = 5_000
DEPTH_MAX: Final = 8
_NAME: Final = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")
Tree = dict[str, Any]


def read_form(encoded: str) -> tuple[Tree, list[tuple[str, str]]]:
    """The tree and the pairs of a body or a query. ``name[]`` appends to a list with the keys 0, 1, 2."""
    try:
        pairs = parse_qsl(encoded, keep_blank_values=True, strict_parsing=bool(encoded), max_num_fields=PAIRS_MAX)
    except ValueError as error:
        raise ApiError(f"Invalid form body: {error}") from error
    tree: Tree = {}
    for name, value in pairs:
        _put(tree, _steps(name), value, name)
    return tree, pairs


def _steps(name: str) -> Sequence[str]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise ApiError(f"Invalid parameter name: {name[:100]}", param=name[:100])
    steps = [match[1], *re.findall(r"\[([^\[\]]*)\]", match[2])]
    if len(steps) > DEPTH_MAX:
        raise ApiError(f"Parameters are nested more than {DEPTH_MAX} deep", param=steps[0])
    return steps


def _put(tree: Tree, steps: Sequence[str], value: str, name: str) -> None:
    node = tree
    for step in steps[:-1]:
        following = node.setdefault(step or str(len(node)), {})
        if not isinstance(following, dict):
            raise ApiError(f"Parameter {name[:100]} is both a value and an object", param=steps[0])
        node = following
    last = steps[-1] or str(len(node))
    if last in node:
        raise ApiError(f"Parameter {name[:100]} is given twice", param=steps[0])
    node[last] = value
