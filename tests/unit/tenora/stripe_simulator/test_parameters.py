"""Forms become typed parameters, and what is wrong in one is named as Stripe names it."""

import pytest
import stripe
from stripe import params as sdk

from tenora.stripe_simulator import cards, checkout, clocks, customers, intents, returns, webhooks
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.operations import OPERATIONS
from tenora.stripe_simulator.parameters import Parameters, WithMetadata, read_form, read_parameters
from tenora.stripe_simulator.simulation import API_VERSION

STRIPES = {
    Parameters: (),
    customers.NewCustomer: (sdk.CustomerCreateParams,),
    customers.CustomerChanges: (sdk.CustomerUpdateParams,),
    customers.ListCustomers: (sdk.CustomerListParams,),
    cards.AttachCard: (sdk.PaymentMethodAttachParams,),
    cards.ListCards: (sdk.CustomerPaymentMethodListParams,),
    intents.NewIntent: (sdk.PaymentIntentCreateParams,),
    intents.ListOfCustomer: (sdk.PaymentIntentListParams, sdk.ChargeListParams, sdk.checkout.SessionListParams),
    returns.NewRefund: (sdk.RefundCreateParams,),
    returns.ListReturns: (sdk.RefundListParams, sdk.DisputeListParams),
    checkout.NewSession: (sdk.checkout.SessionCreateParams,),
    checkout.IntentData: (sdk.checkout.SessionCreateParamsPaymentIntentData,),
    WithMetadata: (sdk.checkout.SessionCreateParamsSetupIntentData,),
    checkout.LineItem: (sdk.checkout.SessionCreateParamsLineItem,),
    checkout.PriceData: (sdk.checkout.SessionCreateParamsLineItemPriceData,),
    checkout.NewPortalSession: (sdk.billing_portal.SessionCreateParams,),
    webhooks.ListEvents: (sdk.EventListParams,),
    clocks.NewClock: (sdk.test_helpers.TestClockCreateParams,),
    clocks.ClockTarget: (sdk.test_helpers.TestClockAdvanceParams,),
}
SESSION = "mode=payment&customer=cus_1&success_url=x"
PAYMENT = "currency=usd&customer=cus_1&payment_method=pm_1&confirm=true"


def read(declared, body: str):
    return read_parameters(read_form(body), declared)


def test_strings_become_typed_values():
    body = (
        f"{SESSION}&metadata[a]=b&line_items[0][quantity]=2&line_items[0][price_data][currency]=usd"
        "&line_items[0][price_data][unit_amount]=5&line_items[0][price_data][product_data][name]=Credits"
    )
    price = checkout.PriceData(currency="usd", unit_amount=5, product_data=checkout.Product(name="Credits"))
    assert read(checkout.NewSession, body) == checkout.NewSession(
        mode="payment",
        customer="cus_1",
        success_url="x",
        metadata={"a": "b"},
        line_items=(checkout.LineItem(quantity=2, price_data=price),),
    )


@pytest.mark.scenario(145)
@pytest.mark.parametrize(
    ("declared", "body", "code", "param"),
    [
        (intents.NewIntent, f"amount=12.5&{PAYMENT}", "parameter_invalid_integer", "amount"),
        (intents.NewIntent, f"amount=&{PAYMENT}", "parameter_invalid_integer", "amount"),
        (intents.NewIntent, PAYMENT, "parameter_missing", "amount"),
        (intents.NewIntent, f"amount=50&{PAYMENT}&api_key=sk_test_1", "parameter_unknown", "api_key"),
        (intents.NewIntent, f"amount=50&{PAYMENT}&off_session=perhaps", None, "off_session"),
        (intents.NewIntent, f"amount=50&{PAYMENT}&description[a]=1", None, "description"),
        (returns.NewRefund, "payment_intent=pi_1&reason=because", None, "reason"),
        (returns.NewRefund, "payment_intent=", "parameter_invalid_empty", "payment_intent"),
        (checkout.NewSession, f"{SESSION}&line_items[0][x]=1", "parameter_unknown", "line_items[0][x]"),
        (checkout.NewSession, f"{SESSION}&line_items[1][quantity]=1", None, "line_items"),
        (checkout.NewSession, f"{SESSION}&payment_intent_data[x]=1", "parameter_unknown", "payment_intent_data[x]"),
        (customers.NewCustomer, "metadata[a][b]=1", None, "metadata"),
        (customers.NewCustomer, f"metadata[a]={'x' * 501}", "parameter_invalid_string_too_long", "metadata"),
        (customers.NewCustomer, f"metadata[{'k' * 41}]=1", "parameter_invalid_string_too_long", "metadata"),
        (customers.NewCustomer, "&".join(f"metadata[k{i}]=1" for i in range(51)), None, "metadata"),
        (customers.NewCustomer, f"name={'x' * 5001}", "parameter_invalid_string_too_long", "name"),
        (customers.NewCustomer, "name=a&name=b", None, "name"),
        (customers.NewCustomer, "metadata=a&metadata[b]=c", None, "metadata"),
        (customers.NewCustomer, "a[b][c][d][e][f][g][h][i]=1", None, "a"),
        (customers.NewCustomer, "]x[=1", None, "]x["),
    ],
)
def test_a_wrong_parameter_is_named(declared, body, code, param):
    with pytest.raises(ApiError) as refused:
        read(declared, body)
    error = refused.value.body["error"]
    assert (refused.value.status, error["type"]) == (400, "invalid_request_error")
    assert (error.get("code"), error.get("param")) == (code, param)


@pytest.mark.parametrize("declared", [*{operation.parameters for operation in OPERATIONS}, *STRIPES], ids=str)
def test_the_parameters_of_an_operation_are_stripes(declared):
    for stripes in STRIPES[declared]:
        assert set(declared.__struct_fields__) - set(stripes.__annotations__) <= {"created"}, "Stripe does not know it"


def test_the_api_version_is_that_of_the_sdk():
    assert stripe.api_version == API_VERSION


def test_each_operation_stands_once_in_the_table():
    assert len({(each.method, each.path) for each in OPERATIONS}) == len(OPERATIONS)
