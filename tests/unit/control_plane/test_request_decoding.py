"""Errors of the decoder become InvalidRequest with the field's name, for every wire type."""

import msgspec
import pytest

from control_plane.plans.schemas import NewPlan
from control_plane.registry.schemas import NewRevision
from control_plane.request_decoding import invalid_field, place_of_nul
from control_plane.tenants.schemas import NewTenant, TenantPatch


@pytest.mark.parametrize(
    ("text", "kind", "param", "code"),
    [
        (b"{}", NewPlan, "name", "missing_field"),
        (b'{"name": 3}', NewPlan, "name", "invalid_value"),
        (b'{"name": null}', NewPlan, "name", "invalid_value"),
        (b'{"nope": 1}', NewPlan, "nope", "unknown_field"),
        (b'{"name":"a","limits":{"kv_pages":"1"}}', NewPlan, "limits.kv_pages", "invalid_value"),
        (b'{"name":"a","limits":{"kv_pages":true}}', NewPlan, "limits.kv_pages", "invalid_value"),
        (b'{"name":"a","limits":{"kv_pages":1%s}}' % (b"0" * 30), NewPlan, "limits.kv_pages", "invalid_value"),
        (b'{"name":"a","limits":{"kv":1}}', NewPlan, "limits.kv", "unknown_field"),
        (b'{"files":[{"path":"a","size_bytes":1}]}', NewRevision, "files[0].sha256", "missing_field"),
        (b'{"files":[{"path":"a","size_bytes":-1}]}', NewRevision, "files[0].size_bytes", "invalid_value"),
        (b'{"limits":{"adapters":0}}', TenantPatch, "limits.adapters", "invalid_value"),
        (b'{"status":"deleted"}', TenantPatch, "status", "invalid_value"),
        (b"[]", TenantPatch, None, "invalid_value"),
    ],
)
def test_the_field_is_named(text, kind, param, code):
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(text, type=kind)
    refused = invalid_field(caught.value)
    assert (refused.param, refused.code, refused.status) == (param, code, 400)
    assert (param or "body") in refused.message
    assert "`$" not in refused.message


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (b'{"status":"deleted"}', TenantPatch, "status: must be one of active, suspended."),
        (b'{"nope":1}', NewTenant, "nope: unknown field. Use name, plan."),
        (b'{"files":[{"size":1}]}', NewRevision, "files[0].size: unknown field. Use path, size_bytes, sha256."),
        (b'{"limits":{"adapters":0}}', TenantPatch, "limits.adapters: must be at least 1."),
        (b'{"limits":{"kv_pages":"1"}}', TenantPatch, "limits.kv_pages: must be a whole number or null, not a string."),
        (b'{"name":""}', TenantPatch, "name: must have a length of at least 1."),
        (b'{"name":3}', NewPlan, "name: must be a string, not a whole number."),
        (b"[]", TenantPatch, "body: must be an object, not a list."),
    ],
)  # fmt: skip
def test_the_message_is_plain_and_names_what_is_allowed(text, kind, message):
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(text, type=kind)
    assert invalid_field(caught.value, kind).message == message


def test_null_removes_an_override_and_an_absent_field_keeps_it():
    patch = msgspec.json.decode(b'{"limits":{"adapters":null,"kv_pages":5}}', type=TenantPatch)
    assert msgspec.to_builtins(patch) == {"limits": {"adapters": None, "kv_pages": 5}}


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (rb'{"tenants": ["tn_1", "a\u0000b"]}', "tenants[1]"),
        (rb'{"limits": {"a\u0000b": 1}}', "limits"),
        (rb'"\u0000"', ""),
        (rb'{"name": "a\\u0000b"}', None),
    ],
)
def test_a_text_with_a_nul_is_found_by_its_place(body, place):
    assert place_of_nul(body) == place
