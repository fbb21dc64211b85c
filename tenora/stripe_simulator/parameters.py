"""Reads a request's form into the typed parameters of its operation, and refuses wrong ones as Stripe does.

Each operation declares the parameters that it honours; any other one is refused, because ignoring it would let a wrong
call pass. That the declared ones exist at Stripe is shown by a test, from the types that Stripe generates for its SDK.
"""

import re
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta

from tenora.stripe_simulator.errors import ApiError

PAIRS_MAX: Final = 500
DEPTH_MAX: Final = 8
_NAME: Final = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")
_CODES: Final = {
    "Expected `int`, got": "parameter_invalid_integer",
    "Expected `str` of length >=": "parameter_invalid_empty",
    "Expected `str` of length <=": "parameter_invalid_string_too_long",
}
_Read = TypeVar("_Read", bound="Parameters")

Text = Annotated[str, Meta(min_length=1, max_length=5_000)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=40)], Annotated[str, Meta(max_length=500)]], Meta(max_length=50)
]
Currency = Literal["usd", "eur"]  # whose minimum charge is 0.50


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be sent with an operation. Without fields: nothing."""


class WithMetadata(Parameters, frozen=True):
    metadata: Metadata = msgspec.field(default_factory=dict)


class CreatedRange(Parameters, frozen=True):
    gte: int = 0
    lte: int = 1 << 62


class ListParameters(Parameters, frozen=True):
    """One page of a list. A subclass adds filters, each named like a field of the listed objects."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    starting_after: Text | None = None
    created: CreatedRange = CreatedRange()


def read_form(encoded: str) -> dict[str, Any]:
    """The tree of a body or a query: ``lines[0][amount]=5`` is ``{"lines": [{"amount": "5"}]}``."""
    try:
        pairs = parse_qsl(encoded, keep_blank_values=True, strict_parsing=bool(encoded), max_num_fields=PAIRS_MAX)
    except ValueError as error:
        raise ApiError(f"Invalid form body: {error}") from error
    tree: dict[str, Any] = {}
    for name, value in pairs:
        _put(tree, name, value)
    return {name: _with_lists(value) for name, value in tree.items()}


def _put(tree: dict[str, Any], name: str, value: str) -> None:
    match = _NAME.fullmatch(name)
    if match is None:
        raise ApiError(f"Invalid parameter name: {name[:100]}", param=name[:100])
    steps = [match[1], *re.findall(r"\[([^\[\]]*)\]", match[2])]
    if len(steps) > DEPTH_MAX:
        raise ApiError(f"Parameters are nested more than {DEPTH_MAX} deep", param=steps[0])
    node = tree
    for step in steps[:-1]:
        node = node.setdefault(step or str(len(node)), {})
        if not isinstance(node, dict):
            raise ApiError(f"Parameter {name[:100]} is both a value and an object", param=steps[0])
    last = steps[-1] or str(len(node))
    if last in node:
        raise ApiError(f"Parameter {name[:100]} is given twice", param=steps[0])
    node[last] = value


def _with_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    read = {name: _with_lists(each) for name, each in value.items()}
    return [read[name] for name in read] if list(read) == [str(place) for place in range(len(read))] else read


def read_parameters(tree: dict[str, Any], declared: type[_Read]) -> _Read:
    """The typed values of all given parameters. Raises ApiError for the first unknown, missing or wrong one."""
    try:
        return msgspec.convert(tree, declared, strict=False)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from error


def _refusal(problem: str) -> ApiError:
    """The problem in Stripe's form: msgspec writes ``Expected `int`, got `str` - at `$.price.amount```."""
    what, _, place = problem.partition(" - at ")
    steps = re.sub(r".*\$|\[\.{3}.*|[`\]]", "", place).replace("[", ".").split(".")
    field = re.fullmatch(r"Object (contains unknown|missing required) field `(.*)`", what)
    path = [step for step in (*steps, field[2] if field else "") if step]
    param = "".join([path[0], *(f"[{step}]" for step in path[1:])]) if path else None
    if field and field[1] == "contains unknown":
        message = f"Received unknown parameter: {param}. The Stripe simulator knows the parameters that Tenora sends."
        return ApiError(message, code="parameter_unknown", param=param)
    if field:
        return ApiError(f"Missing required param: {param}.", code="parameter_missing", param=param)
    code = next((code for beginning, code in _CODES.items() if what.startswith(beginning)), None)
    return ApiError(f"Invalid {param}: {what}", code=code, param=param)
