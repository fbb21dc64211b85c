"""A console with a tenant that has one of everything, and people in each role."""

import pytest

from control_plane.members.roles import TENANT_ROLES
from tests.fixtures.control_plane.browser import admin, join


@pytest.fixture(scope="module")
def people(walk):
    """A person in each role at the walk's tenant."""
    return {role: join(walk.api, walk.tenant, role) for role in TENANT_ROLES}


@pytest.fixture(scope="module")
def operator(walk):
    """A person who runs the platform."""
    return admin(walk.api)


@pytest.fixture(scope="module")
def ids(existing, walk):
    lines = walk.tenant.http.get(f"/api/v1/invoices/{existing['invoice_id'][0]}/explain").json()["data"]
    line = next(each["line"]["id"] for each in lines if each["requests_url"])
    return existing | {"line_id": [line], "request_id": ["req_unknown"], "code": ["BBBB-BBBB"]}
