"""Tests compile into a cache of their own, never into the user's."""

import gc
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A fresh cache for the session, or the folder DCIR_TEST_CACHE, which makes repeated runs quick.

    Processes that share a session (pytest-xdist) share its cache: each kernel is built by one of them.
    """
    kept = os.environ.get("DCIR_TEST_CACHE")
    together = tmp_path_factory.getbasetemp().parent / "dcir-cache"
    if kept:
        folder = os.path.abspath(kept)
    elif "PYTEST_XDIST_WORKER" in os.environ:
        folder = str(together)
    else:
        folder = str(tmp_path_factory.mktemp("dcir-cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DCIR_CACHE_DIR", folder)
        yield


def pytest_collection_finish() -> None:
    """What is imported and collected stays: the garbage collector need not walk over it again and again."""
    gc.collect()
    gc.freeze()
