"""Passes of other packages: found by their entry points, put where they want to be, told of where that is not possible."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dcir.driver import api
from dcir.errors import OptionError
from dcir.extensions import ExtensionWarning, read_again
from dcir.ir.network import Network
from dcir.transforms import pipelines, registered
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.pipelines import PASSES, all_passes, pipeline
from dcir.transforms.registered import origin_of, with_passes

Install = Callable[..., None]

CODE = """
from dataclasses import dataclass
from typing import ClassVar
from dcir.transforms.base import Pass, PassResult

@dataclass(frozen=True)
class Counting(Pass):
    {declared}
    least: int = 3
    def apply(self, net):
        return PassResult()

class Other:
    pass
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package with a pass beside those that are installed."""

    def make(name: str, declared: str = "tier = 2", entry: str = "counting = {name}:Counting") -> None:
        (tmp_path / f"{name}.py").write_text(CODE.format(declared=declared))
        folder = tmp_path / f"{name}-1.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (folder / "entry_points.txt").write_text(f"[dcir.passes]\n{entry.format(name=name)}\n")
        forget()

    def forget() -> None:
        read_again()
        registered.registered.cache_clear()
        pipelines.all_passes.cache_clear()

    monkeypatch.syspath_prepend(str(tmp_path))
    yield make
    monkeypatch.undo()
    forget()


def names(passes: tuple[Pass, ...]) -> list[str]:
    return [p.name for p in passes]


def between(passes: tuple[Pass, ...], name: str = "counting") -> tuple[str, str]:
    """The passes before and behind one."""
    at = names(passes).index(name)
    return names(passes)[at - 1], names(passes)[at + 1]


@pytest.mark.parametrize(
    ("declared", "around"),
    [
        ('after = ("fuse-epilogues",)', ("fuse-epilogues", "group-scatters")),
        ('after = ("fuse-epilogues", "assign-layouts")', ("assign-layouts", "read-cache-in-place")),
        ('before = ("assign-layouts",)', ("fuse-siblings", "assign-layouts")),
        ("tier = 0", ("remove-dead-code", "hoist-invariants")),
        ("tier = 1", ("split-reduction", "fuse-concatenated-writes")),
        ("tier = 2", ("fuse-concatenated-writes", "prepare-static")),
        ("tier = 4", ("fuse-concatenated-writes", "prepare-static")),
        ("tier = 4; final = True; before = ('plan-arena',)", ("keep-in-place", "plan-arena")),
    ],
)
def test_a_pass_runs_where_it_wants_to(install: Install, declared: str, around: tuple[str, str]) -> None:
    install(f"package_{abs(hash(declared))}", declared)
    assert between(all_passes()) == around
    assert len(all_passes()) == len(PASSES) + 1


def test_a_level_runs_it_from_its_tier_on(install: Install) -> None:
    install("counting_of_two", 'tier = 2; after = ("assign-layouts",)')
    assert "counting" not in names(pipeline(1))
    assert between(pipeline(2)) == ("fuse-siblings", "merge-summed-convolutions")
    assert between(pipeline(4)) == ("assign-layouts", "read-cache-in-place")


def test_it_is_listed_with_its_origin(install: Install) -> None:
    install("counting_shown")
    (shown,) = (p for p in api.list_passes(4) if p.origin != "dcir")
    assert (shown.name, shown.tier, shown.origin, shown.options) == ("counting", 2, "counting_shown 1.2", {"least": 3})
    assert origin_of(PASSES[0]) == "dcir"


@pytest.mark.parametrize(
    ("declared", "entry", "text"),
    [
        ("tier = 2", "counting = no_such_module_anywhere:Counting", "No module named"),
        ("tier = 2", "counting = {name}:Missing", "has no attribute"),
        ("tier = 2", "counting = {name}:Other", "is no pass"),
        ("tier = 7", "counting = {name}:Counting", "tier cannot be 7"),
        ('after = "fuse-epilogues"', "counting = {name}:Counting", "after cannot be 'fuse-epilogues'"),
        ('after = ("fuse-epilogue",)', "counting = {name}:Counting", "try    fuse-epilogues"),
        ('after = ("plan-arena",); before = ("fold-constants",)', "counting = {name}:Counting", "cannot run after"),
        ('name = "plan-arena"', "counting = {name}:Counting", "there is a pass plan-arena already"),
    ],
)
def test_one_that_cannot_run_is_told_of_and_the_others_do(
    install: Install, declared: str, entry: str, text: str
) -> None:
    name = f"broken_{abs(hash((declared, entry)))}"
    install(name, declared, entry)
    install("whole_beside_it", "tier = 1", "whole = whole_beside_it:Counting")
    with pytest.warns(
        ExtensionWarning, match=f"entry point 'counting' of group 'dcir.passes' .{name} 1.2. is left out"
    ) as told:
        passes = pipeline(4)
    assert any(text in str(w.message) for w in told)
    assert len(passes) == len(PASSES) + 1 and names(passes).count("counting") == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipeline(4)


@dataclass(frozen=True)
class AfterText(Pass):
    after: ClassVar[tuple[str, ...]] = "fuse-epilogues"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("added", "text"),
    [
        ("fuse-epilogues", "'fuse-epilogues' is no pass"),
        (None, "None is no pass"),
        (AfterText, "try    AfterText()"),
        (AfterText(), "after cannot be 'fuse-epilogues'"),
    ],
)
def test_what_is_no_pass_is_refused(added: Any, text: str) -> None:
    with pytest.raises(OptionError) as told:
        with_passes(pipeline(4), added)
    assert text in str(told.value)


@dataclass(frozen=True)
class Late(Pass):
    tier: ClassVar[int] = 4
    after: ClassVar[tuple[str, ...]] = ("fuse-segments",)

    def apply(self, net: Network) -> PassResult:
        return PassResult()


def test_a_pipeline_with_a_pass_more() -> None:
    assert between(with_passes(pipeline(4), Late()), "late") == ("fuse-segments", "fuse-siblings")
    assert with_passes(pipeline(4)) == pipeline(4)
    with pytest.raises(OptionError, match="names a pass 'fuse-segments', which the pipeline does not have"):
        with_passes(pipeline(1), Late())
