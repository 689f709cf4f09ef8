"""Every operator page, every sample: the lowering run by the reference interpreter against eager torch."""

from __future__ import annotations

import pytest

from dcir.ops.registry import pages
from tests.harness import check_operator, fits

CASES = [
    (p, s, i)
    for p in pages().values()
    if p.overload is not None
    for i, s in enumerate(p.samples())
    if fits(p.overload, s)
]


@pytest.mark.parametrize(("page", "sample"), [pytest.param(p, s, id=f"{p.name}-{i}-{s.name}") for p, s, i in CASES])
def test_reference(page: object, sample: object) -> None:
    """Same numbers as eager, by the float64 rule."""
    check_operator(page, sample)
