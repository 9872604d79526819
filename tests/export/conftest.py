"""Kept tables are the same in any time zone."""

import time
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def utc() -> Iterator[None]:
    """Local time is UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()
