"""The event types that the API offers are those of the catalogue."""

from typing import get_args

from billing.notifications.event_types import SUBSCRIBABLE
from control_plane.notifications.schemas import EventTypeName


def test_the_api_offers_every_type_that_can_be_chosen():
    assert get_args(EventTypeName) == SUBSCRIBABLE
