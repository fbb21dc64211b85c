"""The class of service of a request: what its caller asks for, within what its plan and its key allow. Pure."""

from collections.abc import Iterable
from typing import Final, get_args

from core.contracts.grants import ServiceClass
from core.errors import Forbidden, InvalidRequest

HEADER: Final = b"x-tier"
SHORT_TOKENS_MAX: Final = 64
"""Generated tokens of a near-real-time request, at most: more are not whole within a second."""

_CLASSES: Final[tuple[ServiceClass, ...]] = get_args(ServiceClass)
_BY_TIER: Final[dict[str, ServiceClass]] = {"priority": "near_real_time", "flex": "batch"}
_BY_NAME: Final[dict[bytes, ServiceClass]] = {each.encode(): each for each in _CLASSES}


def service_class(
    headers: Iterable[tuple[bytes, bytes]],
    service_tier: str | None,
    allowed: tuple[ServiceClass, ...],
    *,
    output_tokens: int,
) -> ServiceClass:
    """The class that a request gets: the asked one, else the next slower one that is allowed, else the slowest that is
    allowed. Header ``x-tier`` asks for one, else OpenAI's ``service_tier``, else it is interactive. A request for more
    ``output_tokens`` than a short answer has is interactive instead of near-real-time. Raises InvalidRequest for a
    header with another word, and Forbidden where the key allows none of the plan's classes.
    """
    asked = _asked(headers, service_tier)
    if asked == "near_real_time" and output_tokens > SHORT_TOKENS_MAX:
        asked = "interactive"
    slower = [each for each in _CLASSES[_CLASSES.index(asked) :] if each in allowed]
    if slower:
        return slower[0]
    faster = [each for each in _CLASSES if each in allowed]
    if not faster:
        raise Forbidden("The key allows no class of service of its plan.", code="service_class_not_allowed")
    return faster[-1]


def _asked(headers: Iterable[tuple[bytes, bytes]], service_tier: str | None) -> ServiceClass:
    for name, value in headers:
        if name == HEADER and value:
            found = _BY_NAME.get(value)
            if found is None:
                raise InvalidRequest(
                    f"Header `x-tier` must be one of {', '.join(_CLASSES)}.", code="invalid_value", param="x-tier"
                )
            return found
    return _BY_TIER.get(service_tier or "", "interactive")
