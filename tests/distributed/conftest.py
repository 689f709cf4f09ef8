"""Two processes, and four, for all tests that one process of pytest runs here."""

from collections.abc import Iterator

import pytest

from tests.distributed import pair as processes


@pytest.fixture(scope="session")
def pair() -> Iterator[processes.Pair]:
    """Started at the first use."""
    with processes.pair() as both:
        yield both


@pytest.fixture(scope="module")
def four() -> Iterator[processes.Pair]:
    """Started at the first use, and gone before others want the memory."""
    with processes.pair(4) as all_of_them:
        yield all_of_them
