"""Checks the form of VAT ids of EU countries, with check digits where the rule is short. Nothing is looked up: that an
id exists and is the tenant's own is the operator's to verify, for example at the Commission's VIES.

The forms are those of VIES (https://ec.europa.eu/taxation_customs/vies/faq.html); the check digits follow the national
rules that python-stdnum documents.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from billing.tax.calculation import EU
from core.errors import InvalidRequest

_SEPARATORS: Final = re.compile(r"[ .-]")
_PREFIX_OF: Final = {"GR": "EL"}
_FORMS: Final[Mapping[str, str]] = {
    "AT": r"U\d{8}",
    "BE": r"[01]\d{9}",
    "BG": r"\d{9,10}",
    "CY": r"\d{8}[A-Z]",
    "CZ": r"\d{8,10}",
    "DE": r"[1-9]\d{8}",
    "DK": r"\d{8}",
    "EE": r"\d{9}",
    "ES": r"(?:[A-Z]\d{7}[A-Z0-9]|\d{8}[A-Z])",
    "FI": r"\d{8}",
    "FR": r"[A-HJ-NP-Z0-9]{2}\d{9}",
    "GR": r"\d{9}",
    "HR": r"\d{11}",
    "HU": r"\d{8}",
    "IE": r"(?:\d{7}[A-W][A-I]?|\d[A-Z+*]\d{5}[A-W])",
    "IT": r"\d{11}",
    "LT": r"(?:\d{9}|\d{12})",
    "LU": r"\d{8}",
    "LV": r"\d{11}",
    "MT": r"\d{8}",
    "NL": r"[A-Z0-9+*]{10}\d{2}",
    "PL": r"\d{10}",
    "PT": r"[1-9]\d{8}",
    "RO": r"[1-9]\d{1,9}",
    "SE": r"\d{10}01",
    "SI": r"[1-9]\d{7}",
    "SK": r"[1-9]\d{9}",
}


def checked_vat_id(text: str, country: str | None) -> str:
    """The id in its plain form, such as ``DE136695976``. Raises InvalidRequest if it cannot be one of ``country``.

    Ids of countries outside of the EU are kept as they are: they change no tax.
    """
    plain = _SEPARATORS.sub("", text).upper()
    if country is None:
        raise InvalidRequest(
            "vat_id: set the country too; the id is checked by that country's rules.",
            code="country_missing",
            param="country",
        )
    if country not in EU:
        return plain
    prefix = _PREFIX_OF.get(country, country)
    body = plain.removeprefix(prefix)
    if body == plain or not re.fullmatch(_FORMS[country], body) or not _digits_fit(country, body):
        raise InvalidRequest(
            f"vat_id: {text!r} is not a VAT id of {country}; it begins with {prefix} and has the form and the check "
            "digits of that country. Copy it from the registration, or leave it out.",
            code="invalid_vat_id",
            param="vat_id",
        )
    return plain


def _digits_fit(country: str, body: str) -> bool:
    rule = _CHECKS.get(country)
    return rule is None or rule(body)


def _weighted(body: str, weights: Sequence[int]) -> int:
    return sum(int(digit) * weight for digit, weight in zip(body, weights, strict=False))


def _luhn(body: str) -> bool:
    doubled = (int(digit) * (2 if place % 2 else 1) for place, digit in enumerate(reversed(body)))
    return sum(number // 10 + number % 10 for number in doubled) % 10 == 0


def _iso_7064_11_10(body: str) -> bool:
    carry = 10
    for digit in body[:-1]:
        carry = (int(digit) + carry) % 10 or 10
        carry = carry * 2 % 11
    return (11 - carry) % 10 == int(body[-1])


def _austria(body: str) -> bool:
    digits = body[1:]
    doubled = (int(digit) * (2 if place % 2 else 1) for place, digit in enumerate(digits[:7]))
    return (6 - sum(number // 10 + number % 10 for number in doubled)) % 10 == int(digits[7])


def _finland(body: str) -> bool:
    return _weighted(body, (7, 9, 10, 5, 8, 4, 2, 1)) % 11 == 0


def _france(body: str) -> bool:
    key, siren = body[:2], body[2:]
    return not key.isdigit() or int(key) == (12 + 3 * (int(siren) % 97)) % 97  # keys with letters have another rule


def _greece(body: str) -> bool:
    return _weighted(body, (256, 128, 64, 32, 16, 8, 4, 2)) % 11 % 10 == int(body[8])


def _poland(body: str) -> bool:
    return _weighted(body, (6, 5, 7, 2, 3, 4, 5, 6, 7)) % 11 == int(body[9])


def _portugal(body: str) -> bool:
    return (11 - _weighted(body, (9, 8, 7, 6, 5, 4, 3, 2)) % 11) % 11 % 10 == int(body[8])


_CHECKS: Final[Mapping[str, Callable[[str], bool]]] = {
    "AT": _austria,
    "BE": lambda body: 97 - int(body[:8]) % 97 == int(body[8:]),
    "DE": _iso_7064_11_10,
    "DK": lambda body: _weighted(body, (2, 7, 6, 5, 4, 3, 2, 1)) % 11 == 0,
    "FI": _finland,
    "FR": _france,
    "GR": _greece,
    "HR": _iso_7064_11_10,
    "IT": _luhn,
    "LU": lambda body: int(body[:6]) % 89 == int(body[6:]),
    "PL": _poland,
    "PT": _portugal,
    "SK": lambda body: int(body) % 11 == 0,
}
