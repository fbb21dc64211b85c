"""Every operation of the OpenAPI document, called by schemathesis with data that the document allows and forbids, on
objects that exist and on others: no answer is a server error, each is documented, and the document allows what the
code allows.
"""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.fixtures.examples import examples

AT = st.integers(0, 3)
THOROUGH = settings.get_current_profile_name() == "thorough"  # other runs try the same data each time
FOUND = st.booleans() if THOROUGH else st.just(True)  # two calls of each operation are of what exists
POSITIVE, NEGATIVE = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
NOT_IN_A_SCHEMA = {
    "invalid_cursor",  # only a page's own next_cursor is one
    "nul_character",  # no text may have one
    "instant_out_of_range",  # a schema bounds no date
    "plan_not_found",
    "tenant_not_found",
    "base_model_not_found",
    "pool_not_found",
    "pool_mismatch",
    "member_not_found",
    "member_is_a_group",
    "invalid_group",
    "idempotency_key_reused",
    "invalid_price_card",
    "invalid_webhook_address",
    "invalid_email_address",
    "invalid_dollars",
    "invalid_confirmation_code",
    "webhook_host_not_found",
    "webhook_address_not_public",
    "invalid_provider_url",
    "provider_host_not_found",
    "provider_address_not_public",
    "base_model_is_outside",
    ("GET", "/api/v1/audit-events", "end"),  # later than start
    ("GET", "/api/v1/admin/audit-events", "end"),
    ("POST", "/api/v1/admin/pools", "rank_max"),
    ("POST", "/api/v1/admin/pools", "replicas_min"),  # at most replicas_max
    ("PATCH", "/api/v1/admin/pools/{pool}", "replicas_min"),
    ("POST", "/api/v1/admin/pools", "tokens_min"),  # at most tokens_max
    ("PATCH", "/api/v1/admin/pools/{pool}", "tokens_min"),
    ("POST", "/api/v1/admin/pools/{pool}/revisions"),  # settings of an engine, and what a first revision needs
    ("POST", "/api/v1/admin/base-models", "tokenizer_json"),
    ("POST", "/api/v1/admin/base-models", "rank_max"),
    ("POST", "/api/v1/admin/base-models", "rank_classes"),
    "country_missing",
    "invalid_vat_id",
    ("POST", "/api/v1/admin/invoices/{invoice_id}/credit-notes", "amount_cents"),
    ("POST", "/api/v1/admin/usage/{request_id}/amend"),  # quantities that must differ, and cached ones are a part
    ("POST", "/api/v1/adapters/{name}/revisions"),  # the report on the announced files
    ("PUT", "/api/v1/adapters/{name}/aliases/{alias}"),  # one of two fields, and revisions by their ids
    ("PATCH", "/api/v1/admin/tenants/{tenant_id}", "limits"),  # missing beside its reason or end
    ("PATCH", "/api/v1/admin/tenants/{tenant_id}", "limits_expire_at"),
    ("PUT", "/api/v1/admin/tenants/{tenant_id}/billing-profile", "exempt_until"),
    ("POST", "/api/v1/admin/billing/tax-rates", "effective_from"),
    ("POST", "/api/v1/admin/billing/close", "until"),
    ("POST", "/api/v1/admin/plans/{plan_id}/versions", "effective_from"),
    ("POST", "/api/v1/admin/plans/{plan_id}/versions", "limits"),  # one of two fields
    ("POST", "/api/v1/admin/plans/{plan_id}/simulations", "end"),
    ("POST", "/api/v1/admin/plans/{plan_id}/simulations", "start"),
    ("POST", "/api/v1/admin/plans/{plan_id}/simulations", "draft"),
    ("POST", "/api/v1/admin/plans/{plan_id}/drafts/{draft_id}/publish", "effective_from"),
    ("POST", "/api/v1/admin/tenants/{tenant_id}/discounts", "amount_nanos"),
    ("POST", "/api/v1/admin/tenants/{tenant_id}/discounts", "periods"),
    ("POST", "/api/v1/admin/tenants/{tenant_id}/discounts", "effective_from"),
    ("POST", "/api/v1/admin/tenants/{tenant_id}/discounts", "expires_at"),
    ("POST", "/api/v1/admin/tenants/{tenant_id}/price-overrides", "effective_from"),
    ("POST", "/api/v1/admin/tenants/{tenant_id}/price-overrides", "expires_at"),
    ("PUT", "/api/v1/admin/tenants/{tenant_id}/billing-calendar", "anchor"),
    "unknown_zone",
    ("GET", "/api/v1/admin/costs", "start"),
    ("GET", "/api/v1/admin/costs", "end"),
    ("GET", "/api/v1/admin/costs/focus.csv", "start"),
    ("GET", "/api/v1/admin/costs/focus.csv", "end"),
    "refund_exceeds_unspent",
    ("POST", "/api/v1/spend-limits", "subject_id"),
    ("POST", "/v1/files"),  # a form, which the document does not describe
    "file_not_found",
    ("POST", "/v1/batch"),  # the bodies of requests
    ("PATCH", "/api/v1/admin/tenants/{tenant_id}/spending", "auto_top_up"),
    ("POST", "/api/v1/admin/tenants/{tenant_id}/credits", "amount_nanos"),
    ("POST", "/api/v1/admin/tenants/{tenant_id}/credits", "effective_from"),
    ("POST", "/api/v1/admin/tenants/{tenant_id}/credits", "expires_at"),
    ("POST", "/api/v1/admin/tenants/{tenant_id}/credits", "models"),
    ("POST", "/api/v1/admin/tenants/{tenant_id}/credits/{lot_id}/refund", "amount_nanos"),
    ("GET", "/api/v1/requests", "start"),
    ("GET", "/api/v1/admin/tenants/{tenant_id}/requests", "start"),
    ("GET", "/api/v1/usage", "start"),
    ("GET", "/api/v1/usage", "end"),
    ("GET", "/api/v1/admin/tenants/{tenant_id}/usage", "start"),
    ("GET", "/api/v1/admin/tenants/{tenant_id}/usage", "end"),
    ("GET", "/v1/usage", "date"),
    "team_not_found",
    "line_has_no_requests",
    "credit_note_not_found",
    "invoice_line_not_found",
    *(
        ("GET", f"/v1/organization/{report}", parameter)
        for report in ("usage/completions", "costs")
        for parameter in ("start_time", "end_time", "limit", "models", "project_ids", "api_key_ids", "line_items")
    ),
}
"""Codes, or routes and fields, of data that the document allows and the code refuses, because of other data. A route
alone stands for all its fields.
"""


def call_everything(schema, key: str, existing: dict[str, list[Any]]) -> None:
    load_all_checks()
    failed = []
    operations = [result.ok() for result in schema.get_all_operations()]
    for operation in sorted(operations, key=_ends_something):
        try:
            _call(operation, key, existing)
        except (AssertionError, ExceptionGroup) as error:
            error.add_note(operation.label)
            failed.append(error)
    if failed:
        raise ExceptionGroup("operations that the document does not describe", failed)


def _ends_something(operation) -> bool:
    """Whether other operations would find less afterwards: a deletion, a closed period."""
    return operation.method == "delete" or operation.path.endswith("/close")


def _call(operation, key: str, existing: dict[str, list[Any]]) -> None:
    @examples(100, quick=2, derandomize=not THOROUGH, suppress_health_check=list(HealthCheck), database=None)
    @given(data=st.data(), mode=st.sampled_from([POSITIVE, NEGATIVE]), found=FOUND, at=AT)
    def calls(data, mode, found, at):
        case = data.draw(operation.as_strategy(generation_mode=mode))
        if mode is POSITIVE:
            case.body = _with_whole_numbers(case.body)
            if found and not operation.path.endswith("/close"):  # the tenant is needed by the other routes
                names = [name for name in case.path_parameters if name in existing]
                case.path_parameters |= {name: existing[name][at % len(existing[name])] for name in names}
        headers = {"Authorization": f"Bearer {key}"}
        response = case.call(headers=headers)
        # A list or object of one is sent as what it holds, an empty object as "": that may be right. [null] always is.
        values = [value for value in (case.query or {}).values() if isinstance(value, list | dict) and len(value) < 2]
        assume([None] not in values and not (values and mode is NEGATIVE))
        sent = parse_qs(urlsplit(response.request.url).query, keep_blank_values=True)
        assume(sent.keys() == (case.query or {}).keys())  # a parameter whose value is an empty list is in no URL
        if mode is POSITIVE and response.status_code in (400, 422):
            refused = response.json()
            route = (operation.method.upper(), operation.path, refused.get("param"))
            assert {refused["code"], route, route[:2]} & NOT_IN_A_SCHEMA, refused
        case.validate_response(response, headers=headers, excluded_checks=[positive_data_acceptance])

    calls()


def _with_whole_numbers(value: Any) -> Any:
    """JSON Schema has it that 1.0 is an integer. The API takes it for a mistake."""
    if isinstance(value, dict):
        return {key: _with_whole_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@pytest.mark.hypothesis
@pytest.mark.timeout(3600)  # some hundred calls of each operation, beside other work
def test_an_admin_gets_documented_answers_to_allowed_and_forbidden_data(walk, existing):
    api = walk.api
    schema = schemathesis.openapi.from_url(f"{api.url}/schema/openapi.json").include(path_regex="^/api/v1/admin/")
    call_everything(schema, api.admin_secret, existing)


@pytest.mark.hypothesis
@pytest.mark.timeout(3600)  # some hundred calls of each operation, beside other work
def test_a_tenant_gets_documented_answers_to_allowed_and_forbidden_data(walk, existing):
    api, tenant = walk.api, walk.tenant
    active = {"status": "active"}  # the other test may have suspended it
    api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json=active).raise_for_status()
    schema = schemathesis.openapi.from_url(f"{api.url}/schema/openapi.json").exclude(path_regex="^/api/v1/admin/")
    call_everything(schema, tenant.key, existing)
