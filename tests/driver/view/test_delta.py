"""A change reads what a page says, refuses the rest, and becomes options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from dcir.driver.view.delta import Delta
from dcir.errors import OptionError
from dcir.options import Options
from dcir.transforms.base import Pass
from dcir.transforms.pipelines import pipeline


@dataclass(frozen=True)
class Tiles(Pass):
    """A pass with a field of every kind."""

    most: int = 8
    deep: bool = True
    share: float = 0.5
    word: str = "rows"
    sizes: tuple[int, ...] = (1, 2)


def changed(values: dict[str, Any]) -> Tiles:
    (found,) = Delta.from_json({"fields": {"tiles": values}}).passes((Tiles(),), (Tiles(),))
    assert isinstance(found, Tiles)
    return found


def test_nothing_changed_is_the_options_as_they_are() -> None:
    base = Options(level=2, threads=3)
    assert Delta.from_json({}).options(base) == base
    assert (
        Delta.from_json({"disable": [], "fields": {"fuse-epilogues": {}}, "skip": [], "level": None}).options(base)
        == base
    )


def test_what_is_said_comes_back() -> None:
    data = {
        "disable": ["fuse-epilogues"], "fields": {"tiles": {"most": 4}}, "skip": ["fuse-producers@a+b"], "level": 3, "threads": 1,
        "batch": 2,
    }  # fmt: skip
    assert Delta.from_json(data).to_json() == data


def test_a_pass_that_is_switched_off_is_gone_wherever_it_stands() -> None:
    options = Delta(disable=("fuse-epilogues",)).options(Options())
    assert options.pipeline is not None
    names = [p.name for p in options.pipeline]  # type: ignore[attr-defined]
    assert names == [p.name for p in pipeline(4) if p.name != "fuse-epilogues"]


def test_a_pass_of_another_level_may_be_named() -> None:
    options = Delta(disable=("plan-arena",), level=1).options(Options())
    assert options.pipeline == pipeline(1)


def test_fields_have_the_values_that_are_said() -> None:
    assert changed({"most": 4, "deep": False, "share": 1, "word": "columns"}) == Tiles(4, False, 1.0, "columns")


@pytest.mark.parametrize(
    "values",
    [{"most": True}, {"most": 1.5}, {"most": 1 << 50}, {"deep": 1}, {"word": None}, {"sizes": [1]}, {"none": 1}],
    ids=str,
)
def test_a_value_of_another_kind_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="tiles"):
        changed(values)


def test_a_pass_of_the_users_own_pipeline_is_changed() -> None:
    base = Options(pipeline=(Tiles(), Tiles(most=2)))
    assert Delta(fields={"tiles": {"deep": False}}).options(base).pipeline == (
        Tiles(deep=False),
        Tiles(most=2, deep=False),
    )


def test_a_name_that_is_near_is_told() -> None:
    with pytest.raises(OptionError) as caught:
        Delta(disable=("fuse-epilogue",)).options(Options())
    assert caught.value.hint is not None and "fuse-epilogues" in caught.value.hint
