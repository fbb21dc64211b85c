"""Wire types of plans agree with the contracts, every snapshot kind has a reader, and no secret is printed."""

from billing.prices.card import PriceCard
from control_plane.auth.authenticate import Pepper
from control_plane.projections import projections
from control_plane.publishing.snapshot_store import KINDS
from core.contracts.grants import Prices


def test_prices_in_requests_have_the_contracts_fields():
    assert set(Prices.__struct_fields__) < set(PriceCard.__struct_fields__)


def test_every_kind_of_snapshot_has_a_reader():
    assert set(projections()) == set(KINDS)


def test_the_pepper_does_not_show():
    assert "secret" not in repr(Pepper(value=b"secret"))
