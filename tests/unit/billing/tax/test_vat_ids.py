"""VAT ids are checked by their form and their check digits, and by nothing else."""

import pytest

from billing.tax.calculation import EU
from billing.tax.vat_ids import checked_vat_id
from core.errors import InvalidRequest

# Ids of known companies and examples of the national rules (python-stdnum's documentation).
GOOD = {
    "AT": "ATU13585627",
    "BE": "BE0428759497",
    "DE": "DE136695976",
    "DK": "DK13585628",
    "ES": "ESB58378431",
    "FI": "FI20774740",
    "FR": "FR40303265045",
    "GR": "EL094259216",
    "HR": "HR33392005961",
    "IT": "IT00743110157",
    "LU": "LU15027442",
    "NL": "NL004495445B01",
    "PL": "PL8567346215",
    "PT": "PT501964843",
    "SE": "SE123456789701",
    "SK": "SK2022749619",
}


@pytest.mark.parametrize("country", sorted(GOOD))
def test_a_real_id_is_accepted_and_one_with_another_digit_is_not(country):
    vat_id = GOOD[country]
    assert checked_vat_id(vat_id, country) == vat_id
    if country in {"ES", "NL", "SE"}:  # only their form is checked
        return
    place = len(vat_id) - 2
    changed = vat_id[:place] + str((int(vat_id[place]) + 1) % 10) + vat_id[place + 1 :]
    with pytest.raises(InvalidRequest) as refused:
        checked_vat_id(changed, country)
    assert (refused.value.code, refused.value.param) == ("invalid_vat_id", "vat_id")


def test_separators_and_small_letters_are_taken_out():
    assert checked_vat_id("be 0428.759.497", "BE") == "BE0428759497"


@pytest.mark.parametrize("text", ["", "XX", "136695976", "DE", "DE1", "DE1366959760000", "🙂"])
def test_other_text_is_refused(text):
    for country in EU:
        with pytest.raises(InvalidRequest):
            checked_vat_id(text, country)


def test_an_id_of_a_country_outside_of_the_eu_is_kept_and_one_without_a_country_is_refused():
    assert checked_vat_id("CHE-116.281.710 MWST", "CH") == "CHE116281710MWST"
    with pytest.raises(InvalidRequest) as refused:
        checked_vat_id("DE136695976", None)
    assert refused.value.code == "country_missing"
