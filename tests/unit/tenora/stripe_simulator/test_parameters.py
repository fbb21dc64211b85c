"""Form bodies against the SDK's generated parameter types, and answers against its resource classes."""

import pytest

from tenora.stripe_simulator.annotations import fields_of, parameter_type
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.form import read_form
from tenora.stripe_simulator.operations import operations
from tenora.stripe_simulator.parameters import read_parameters
from tenora.stripe_simulator.resources import KINDS, complete, problems


def read(name: str, body: str):
    return read_parameters(read_form(body)[0], parameter_type(name))


def refusal(name: str, body: str) -> dict:
    with pytest.raises(ApiError) as refused:
        read(name, body)
    assert refused.value.status == 400
    return refused.value.error


def test_strings_become_typed_values():
    body = (
        "mode=payment&customer=cus_1&expires_at=1800000000&metadata[a]=b&expand[]=customer&expand[]=invoice"
        "&line_items[0][quantity]=2&line_items[0][price_data][currency]=usd&line_items[0][price_data][unit_amount]=5"
    )
    assert read("checkout.SessionCreateParams", body) == {
        "mode": "payment",
        "customer": "cus_1",
        "expires_at": 1_800_000_000,
        "metadata": {"a": "b"},
        "expand": ["customer", "invoice"],
        "line_items": [{"quantity": 2, "price_data": {"currency": "usd", "unit_amount": 5}}],
    }


@pytest.mark.scenario(145)
@pytest.mark.parametrize(
    ("name", "body", "code", "param"),
    [
        ("InvoiceItemCreateParams", "amount=12.5", "parameter_invalid_integer", "amount"),
        ("InvoiceItemCreateParams", "amount=1e3", "parameter_invalid_integer", "amount"),
        ("InvoiceItemCreateParams", "amount=", "parameter_invalid_integer", "amount"),
        ("InvoiceItemCreateParams", "period[start]=1", "parameter_missing", "period[end]"),
        ("InvoiceItemCreateParams", "period=1", None, "period"),
        ("InvoiceItemCreateParams", "api_key=sk_test_1", "parameter_unknown", "api_key"),
        ("InvoiceItemCreateParams", "description[a]=1", None, "description"),
        ("CreditNoteCreateParams", "amount=1", "parameter_missing", "invoice"),
        ("CreditNoteCreateParams", "invoice=in_1&reason=because", None, "reason"),
        ("CreditNoteCreateParams", "invoice=in_1&lines[0][type]=other", None, "lines[0][type]"),
        ("CreditNoteCreateParams", "invoice=in_1&lines[1][type]=custom_line_item", None, "lines"),
        ("CreditNoteCreateParams", "invoice=", "parameter_invalid_empty", "invoice"),
        ("InvoiceCreateParams", "auto_advance=True", None, "auto_advance"),
        ("CustomerCreateParams", "metadata[a][b]=1", None, "metadata[a]"),
        ("CustomerCreateParams", f"metadata[a]={'x' * 501}", None, "metadata[a]"),
        ("CustomerCreateParams", f"metadata[{'k' * 41}]=1", None, f"metadata[{'k' * 41}]"),
        ("CustomerCreateParams", "&".join(f"metadata[k{i}]=1" for i in range(51)), None, "metadata"),
        ("CustomerCreateParams", f"name={'x' * 5001}", "parameter_invalid_string_too_long", "name"),
        ("CustomerCreateParams", "name=a&name=b", None, "name"),
        ("CustomerCreateParams", "metadata=a&metadata[b]=c", None, "metadata"),
        ("CustomerCreateParams", "a[b][c][d][e][f][g][h][i]=1", None, "a"),
        ("CustomerCreateParams", "]x[=1", None, "]x["),
    ],
)
def test_a_wrong_parameter_is_named(name, body, code, param):
    error = refusal(name, body)
    assert error["type"] == "invalid_request_error"
    assert (error.get("code"), error.get("param")) == (code, param)


def test_an_empty_string_unsets_what_may_be_unset():
    assert read("CustomerUpdateParams", "metadata=&business_name=") == {"metadata": "", "business_name": ""}


def test_open_enums_are_closed():
    assert read("InvoiceCreateParams", "collection_method=send_invoice") == {"collection_method": "send_invoice"}
    assert "must be one of charge_automatically, send_invoice" in refusal(
        "InvoiceCreateParams", "collection_method=x"
    )["message"]  # fmt: skip


def test_each_operation_stands_once_in_the_table():
    table = operations()
    assert len({(each.method, each.path) for each in table}) == len(table)


@pytest.mark.parametrize("operation", operations(), ids=lambda each: f"{each.method} {each.path}")
def test_an_operation_honours_only_parameters_that_stripe_has(operation):
    assert operation.honours <= fields_of(parameter_type(operation.parameters)).keys()


def test_a_parameter_of_stripes_that_is_not_simulated_is_refused_and_not_ignored():
    (create,) = [each for each in operations() if (each.method, each.path) == ("POST", "/v1/invoices")]
    with pytest.raises(ApiError) as refused:
        create.read(read_form("customer=cus_1&automatic_tax[enabled]=true")[0])
    assert refused.value.error["code"] == "not_simulated"
    assert refused.value.error["param"] == "automatic_tax"


def refund(**changes):
    fields = {"id": "re_1", "amount": 5, "created": 1, "currency": "usd", "status": "succeeded", **changes}
    return complete("refund", fields)


def test_a_complete_object_has_no_problems():
    assert problems(refund()) == []
    assert set(KINDS) >= {"invoice", "refund"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"amount": "5"}, "refund.amount: '5'"),
        ({"amount": True}, "refund.amount: True"),
        ({"currency": None}, "refund.currency: None"),
        ({"colour": "red"}, "refund.colour: unknown field"),
        ({"destination_details": {"card": {"type": 5}}}, "refund.destination_details.card.type: 5"),
    ],
)
def test_an_object_that_contradicts_its_class_is_found(change, problem):
    assert any(each.startswith(problem) for each in problems(refund() | change)), problems(refund() | change)


def test_a_missing_field_is_found():
    incomplete = refund()
    del incomplete["amount"]
    assert problems(incomplete) == ["refund.amount: missing"]
