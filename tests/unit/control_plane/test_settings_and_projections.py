"""Wire types of plans agree with the contracts, every snapshot kind has a reader, and no secret is printed."""

import msgspec

from billing.prices.card import PriceCard
from control_plane.auth.authenticate import Pepper
from control_plane.plans.schemas import LimitsBody
from control_plane.projections import projections
from control_plane.publishing.snapshot_store import KINDS
from control_plane.tenants.schemas import LimitsPatch
from core.contracts.grants import Limits, Prices


def test_limits_and_prices_in_requests_have_the_contracts_fields():
    assert LimitsBody.__struct_fields__ == Limits.__struct_fields__ == LimitsPatch.__struct_fields__
    assert set(Prices.__struct_fields__) < set(PriceCard.__struct_fields__)


def test_a_limit_of_a_plan_and_its_override_have_the_same_bounds():
    whole, single = (
        {field.name: field.type.type for field in msgspec.inspect.type_info(kind).fields}
        for kind in (LimitsBody, LimitsPatch)
    )
    for name, bounds in whole.items():
        allowed = bounds.types if isinstance(bounds, msgspec.inspect.UnionType) else (bounds,)
        assert all(each in single[name].types for each in allowed), name


def test_every_kind_of_snapshot_has_a_reader():
    assert set(projections()) == set(KINDS)


def test_the_pepper_does_not_show():
    assert "secret" not in repr(Pepper(value=b"secret"))
