"""Credit on billing's stage."""

import pytest

from tests.fixtures.wallet import Wallet


@pytest.fixture
def wallet(stage) -> Wallet:
    return Wallet(stage)
