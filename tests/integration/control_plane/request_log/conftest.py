"""A bucket whose request log is empty."""

import pytest

from adapters.object_store.s3 import Bucket
from adapters.settings import StoreSettings


@pytest.fixture
def bucket(s3_settings) -> Bucket:
    found = Bucket(s3_settings, StoreSettings())
    found.delete([each.key for each in found.objects("requests/")])
    return found
