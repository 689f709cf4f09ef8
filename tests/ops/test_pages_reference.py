"""Every operator page, every sample: the lowering run by the reference interpreter against eager torch."""

from __future__ import annotations

import pytest

from tests.harness import all_samples, check_operator


@pytest.mark.parametrize(
    ("page", "sample"), [pytest.param(p, s, id=f"{p.name}-{i}-{s.name}") for p, s, i in all_samples()]
)
def test_reference(page: object, sample: object) -> None:
    """Same numbers as eager, by the float64 rule."""
    check_operator(page, sample)
