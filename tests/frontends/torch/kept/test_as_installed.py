"""What others put among torch's functions shows each time, and a second look at an unchanged torch takes few calls."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._decomp import global_decomposition_table
from torch.nn import functional as F

from dcir.frontends.torch.kept import as_installed
from dcir.frontends.torch.kept.as_installed import changes
from dcir.frontends.torch.kept.descriptions import Descriptions, Unkept
from dcir.frontends.torch.kept.looks import Look


def other(x: Any, *rest: Any) -> Any:
    return x * FACTOR


FACTOR = 2.0


def found() -> list[str]:
    return changes(Descriptions())


def test_a_function_in_another_ones_place_shows_until_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = found()
    for place, name in ((F, "gelu"), (torch.Tensor, "norm"), (torch.nn.functional, "dropout")):
        with monkeypatch.context() as changed:
            changed.setattr(place, name, other)
            assert any("other" in row and name in row for row in set(found()) - set(before))
        assert found() == before


def test_other_bytecode_in_the_same_function_shows() -> None:
    before, code = found(), F.silu.__code__
    try:
        F.silu.__code__ = F.mish.__code__.replace(co_filename=__file__)
        assert len(found()) == len(before) + 1
    finally:
        F.silu.__code__ = code
    assert found() == before


def test_a_decomposition_of_others_is_refused_until_it_goes() -> None:
    before, table = found(), global_decomposition_table["post_autograd"]
    known = table[torch.ops.aten.gelu.default]
    try:
        table[torch.ops.aten.gelu.default] = other
        with pytest.raises(Unkept, match="decomposition"):
            found()
    finally:
        table[torch.ops.aten.gelu.default] = known
    assert found() == before


def test_a_new_name_for_a_function_of_torchs_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    before = found()
    monkeypatch.setattr(F, "gelu", F.silu)
    assert set(found()) - set(before) == {"torch.nn.functional.gelu=torch.nn.functional.silu"}


def calls_of(run: Callable[[], object]) -> int:
    """How many calls there are in one, of Python's and of others."""
    count = 0

    def hear(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(hear)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def test_a_second_look_takes_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many there are at all depends on what is imported."""
    found()
    second = calls_of(found)
    for look in vars(as_installed).values():
        if isinstance(look, Look):
            monkeypatch.setattr(look, "_known", None)
    assert second < calls_of(found) / 4
