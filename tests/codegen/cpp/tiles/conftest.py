"""Kernels are compiled for the instruction sets that this processor lacks; those it has, the tests run by themselves."""

import pytest

from dcir.isa import host_isa
from tests.conftest import COMPILED_ONLY


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them for ``tests/processors.py``; those for a matrix unit once, the others for the vectors they are made of."""
    for item in items if COMPILED_ONLY else ():
        module = getattr(item, "module", None)
        if (
            f"{module.__name__}.".startswith(f"{__package__}.")
            and hasattr(module, "needs_unit") == host_isa().matrix_unit
        ):
            item.add_marker("processor")
