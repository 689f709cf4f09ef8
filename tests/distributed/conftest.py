"""Two processes for all tests that one process of pytest runs here."""

from collections.abc import Iterator

import pytest

from tests.distributed import pair as processes


@pytest.fixture(scope="session")
def pair() -> Iterator[processes.Pair]:
    """Started at the first use."""
    with processes.pair() as both:
        yield both
