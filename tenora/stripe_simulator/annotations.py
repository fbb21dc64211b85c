"""Reads the type annotations of Stripe's SDK, which is generated from Stripe's own specification.

Open enums are closed here: ``Literal['a', 'b'] | str`` accepts only ``a`` and ``b``.
"""

import builtins
import sys
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, ForwardRef, Literal, NotRequired, Union, get_args, get_origin

import stripe
from typing_extensions import get_type_hints

_OPTIONS: Final = frozenset(
    {
        "api_key",
        "content_type",
        "headers",
        "idempotency_key",
        "max_network_retries",
        "stripe_account",
        "stripe_context",
        "stripe_version",
    }
)
"""Fields that each parameter type inherits for the SDK itself; they are no parameters of Stripe's."""
API_VERSION: Final = stripe.api_version


def parameter_type(name: str) -> type:
    """A generated parameter type, such as ``InvoiceCreateParams`` or ``checkout.SessionCreateParams``."""
    found: Any = __import__("stripe.params", fromlist=["params"])
    for part in name.split("."):
        found = getattr(found, part)
    assert isinstance(found, type)
    return found


def resource_type(name: str) -> type:
    """A resource class, such as ``Invoice`` or ``checkout.Session``."""
    found: Any = stripe
    for part in name.split("."):
        found = getattr(found, part)
    assert isinstance(found, type)
    return found


@cache
def fields_of(declared: type) -> Mapping[str, Any]:
    """The fields of a parameter type or a resource class with their annotations; ``NotRequired`` is kept."""
    hints = get_type_hints(declared, localns=_Known(declared), include_extras=True)
    skipped = _OPTIONS if is_parameters(declared) else frozenset({"OBJECT_NAME"})
    return {name: hint for name, hint in hints.items() if name not in skipped and not name.startswith("_")}


class _Known(dict[str, Any]):
    """Names that annotations use and their modules import for type checkers only: public classes of the SDK."""

    def __init__(self, declared: type) -> None:
        super().__init__()
        self._declared = declared

    def __missing__(self, name: str) -> Any:
        module = sys.modules[self._declared.__module__]
        for place in (module, self._declared, stripe, stripe.billing, stripe.checkout, typing, builtins):
            if hasattr(place, name):
                return getattr(place, name)
        return getattr(stripe, name.removesuffix("Resource"), stripe.StripeObject)  # Card as CardResource


def is_parameters(declared: Any) -> bool:
    return isinstance(declared, type) and hasattr(declared, "__required_keys__")


def required(annotation: Any) -> tuple[bool, Any]:
    """Whether a field of a parameter type must be given, and its type."""
    return (False, get_args(annotation)[0]) if get_origin(annotation) is NotRequired else (True, annotation)


@cache
def members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union, flat, with open enums closed."""
    if isinstance(annotation, ForwardRef):
        return members(getattr(stripe, annotation.__forward_arg__, stripe.StripeObject))
    if get_origin(annotation) not in (Union, types.UnionType):
        return (annotation,)
    flat = [each for part in get_args(annotation) for each in members(part)]
    if any(get_origin(each) is Literal and get_args(each) != ("",) for each in flat):
        flat = [each for each in flat if each is not str]
    return tuple(flat)
