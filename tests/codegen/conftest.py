"""A cache and a compiler for tests that build units themselves."""

import pytest

from dcir.cache import Cache
from dcir.codegen.cpp.toolchain import Toolchain


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def toolchain(cache):
    return Toolchain.find(cache)
