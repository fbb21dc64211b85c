"""The countries of ISO 3166-1 by their two letters. Taxes go by them."""

from collections.abc import Mapping
from typing import Final

from core.errors import InvalidRequest

COUNTRIES: Final = frozenset(
    """
    AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT BV BW BY BZ
    CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET FI FJ FK FM FO
    FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR IS IT JE
    JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME MF MG MH MK ML MM MN MO
    MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS PT PW
    PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF TG TH TJ TK TL TM
    TN TO TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS YE YT ZA ZM ZW
    """.split()  # noqa: SIM905 - 249 quoted codes would be a page
)
_MEANT: Final[Mapping[str, str]] = {"UK": "GB", "EL": "GR", "XI": "GB"}
"""Codes that VAT ids, web addresses and people use."""


def country_problem(code: str) -> str | None:
    """Why this is no country, and what to write, in words; None if it is one."""
    if code in COUNTRIES:
        return None
    upper = code.strip().upper()
    meant = _MEANT.get(upper, upper)
    fix = f"write {meant}" if meant in COUNTRIES else "write the two capital letters of ISO 3166-1, such as DE"
    return f"{code!r} is no country: {fix}"


def require_country(code: str) -> None:
    """Raises InvalidRequest for what is no country."""
    if (problem := country_problem(code)) is not None:
        raise InvalidRequest(f"country: {problem}.", code="invalid_country", param="country")
