"""Checks a request's parameters against the SDK's generated parameter types, and turns strings into typed values.

Which of Stripe's parameters an operation honours is in ``tenora.stripe_simulator.operations``.
"""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal, get_args, get_origin

from tenora.stripe_simulator.annotations import fields_of, is_parameters, members, required
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.form import Tree

TEXT_MAX: Final = 5_000
METADATA_KEYS_MAX: Final = 50
METADATA_KEY_MAX: Final = 40
METADATA_VALUE_MAX: Final = 500
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")


def read_parameters(tree: Tree, declared: type, path: str = "") -> dict[str, Any]:
    """The typed values of all given parameters. Raises ApiError for the first unknown, missing or wrong one."""
    fields = fields_of(declared)
    for name in tree:
        if name not in fields:
            full = _join(path, name)
            raise ApiError(f"Received unknown parameter: {full}", code="parameter_unknown", param=full)
    values = {}
    for name, annotation in fields.items():
        must, kind = required(annotation)
        if name in tree:
            values[name] = _value(tree[name], kind, _join(path, name))
        elif must:
            full = _join(path, name)
            raise ApiError(f"Missing required param: {full}.", code="parameter_missing", param=full)
    return values


def _join(path: str, name: str) -> str:
    return f"{path}[{name}]" if path else name


def _value(given: Any, annotation: Any, path: str) -> Any:
    options = members(annotation)
    return _branch(given, options, path) if isinstance(given, dict) else _leaf(given, options, path)


def _branch(given: Tree, options: tuple[Any, ...], path: str) -> Any:
    for option in options:
        if is_parameters(option):
            return read_parameters(given, option, path)
        if get_origin(option) is list:
            if sorted(given) != sorted(map(str, range(len(given)))):
                raise ApiError("Invalid array", param=path)
            item = get_args(option)[0]
            return [_value(given[str(index)], item, f"{path}[{index}]") for index in range(len(given))]
        if get_origin(option) in (dict, Mapping):
            return _metadata(given, path)
    raise ApiError(f"Invalid string: {given}", param=path)


def _metadata(given: Tree, path: str) -> dict[str, str]:
    if len(given) > METADATA_KEYS_MAX:
        raise ApiError(f"Metadata can have up to {METADATA_KEYS_MAX} keys.", param=path)
    for key, value in given.items():
        full = _join(path, key)
        if not isinstance(value, str):
            raise ApiError("Metadata values must be strings.", param=full)
        if len(key) > METADATA_KEY_MAX:
            raise ApiError(f"Metadata keys can be up to {METADATA_KEY_MAX} characters long.", param=full)
        if len(value) > METADATA_VALUE_MAX:
            raise ApiError(f"Metadata values can be up to {METADATA_VALUE_MAX} characters long.", param=full)
    return dict(given)


def _leaf(given: str, options: tuple[Any, ...], path: str) -> Any:
    literals = [value for option in options if get_origin(option) is Literal for value in get_args(option)]
    if given in literals:
        return given
    refusal: ApiError | None = None
    for option in options:
        try:
            match option:
                case _ if option is bool:
                    return _boolean(given, path)
                case _ if option is int:
                    return _integer(given, path)
                case _ if option is Decimal:
                    return _decimal(given, path)
                case _ if option is str:
                    return _string(given, path)
        except ApiError as error:
            refusal = error
    named = [value for value in literals if value != ""]
    if named:
        listed = ", ".join(named[:20]) + (", …" if len(named) > 20 else "")
        raise ApiError(f"Invalid {path}: must be one of {listed}", param=path)
    raise refusal or ApiError(f"Invalid {'array' if _wants_list(options) else 'object'}", param=path)


def _wants_list(options: tuple[Any, ...]) -> bool:
    return any(get_origin(option) is list for option in options)


def _boolean(given: str, path: str) -> bool:
    if given not in ("true", "false"):
        raise ApiError(f"Invalid boolean: {given}", param=path)
    return given == "true"


def _integer(given: str, path: str) -> int:
    if not _INTEGER.fullmatch(given):
        raise ApiError(f"Invalid integer: {given}", code="parameter_invalid_integer", param=path)
    return int(given)


def _decimal(given: str, path: str) -> str:
    try:
        if Decimal(given).is_finite():
            return given
    except InvalidOperation:
        pass
    raise ApiError(f"Invalid decimal: {given}", param=path)


def _string(given: str, path: str) -> str:
    if given == "":
        raise ApiError(
            f"You passed an empty string for '{path}'. We assume empty values are an attempt to unset a parameter;"
            f" however '{path}' cannot be unset.",
            code="parameter_invalid_empty",
            param=path,
        )
    if len(given) > TEXT_MAX:
        raise ApiError(
            f"Invalid string: {given[:20]}…; must be at most {TEXT_MAX} characters",
            code="parameter_invalid_string_too_long",
            param=path,
        )
    return given
