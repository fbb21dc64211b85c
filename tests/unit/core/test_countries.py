"""Countries are those of ISO 3166-1, and a code that people mix up is answered with the right one."""

import pycountry
import pytest

from core.countries import COUNTRIES, country_problem


def test_the_countries_are_those_of_iso_3166_1():
    assert {country.alpha_2 for country in pycountry.countries} == COUNTRIES


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        ("UK", "write GB"), ("uk", "write GB"), ("EL", "write GR"), ("de", "write DE"), (" DE ", "write DE"),
        ("XX", "ISO 3166-1"), ("ZZ", "ISO 3166-1"), ("EU", "ISO 3166-1"), ("AA", "ISO 3166-1"), ("SU", "ISO 3166-1"),
        ("DEU", "ISO 3166-1"), ("276", "ISO 3166-1"), ("Germany", "ISO 3166-1"), ("", "ISO 3166-1"), ("D\n", "ISO"),
    ],
)  # fmt: skip
def test_what_is_no_country_is_named_with_the_fix(code, fix):
    problem = country_problem(code)
    assert problem is not None
    assert fix in problem
