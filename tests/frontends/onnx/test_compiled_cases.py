"""ONNX's own suite through compiled code: what once failed, and a share of the rest that is another one for each commit.

`DCIR_TEST_ALL` takes all cases; `python -m tests.frontends.onnx.sweep` runs them in processes of their own, with a summary.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.frontends.onnx.backend_suite import DATA
from tests.frontends.onnx.compiled_cases import (
    BROKEN,
    ERROR,
    NATIVE,
    NOTHING,
    OUTSIDE,
    REFUSED_KIND,
    RIGHT,
    WRONG,
    Outcome,
    cases,
    check,
)  # fmt: skip
from tests.frontends.onnx.sweep import CRASH, summary
from tests.rotation import chosen

ONCE_FAILED: dict[str, list[str]] = tomllib.loads((Path(__file__).parent / "compiled_cases.toml").read_text())
PARTS = 4
"""Tests that the share is divided into, for processes that share the session."""


@pytest.fixture(autouse=True)
def _by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ONNX_MODELS", str(tmp_path))
    yield
    torch._dynamo.reset()


def _check(names: list[str]) -> None:
    outcomes = [check(name) for name in names]
    assert all(outcome.well for outcome in outcomes), summary(outcomes)


@pytest.mark.parametrize("cause", ONCE_FAILED)
def test_what_once_failed(cause: str) -> None:
    _check(ONCE_FAILED[cause])


@pytest.mark.parametrize("part", range(PARTS))
def test_a_share_of_all_cases(part: int) -> None:
    _check(chosen(cases(), 24)[part::PARTS])


def test_what_counts_as_compiled() -> None:
    """A case whose operators ran outside of dcir is right, and yet not well."""
    assert "test_nonzero_example" in DATA
    outcome = check("test_nonzero_example")
    assert (outcome.kind, outcome.how, outcome.operators) == (RIGHT, OUTSIDE, 0)
    assert "aten.nonzero.default" in outcome.detail
    assert not Outcome("test_abs", RIGHT, OUTSIDE).well
    assert not Outcome("test_abs", RIGHT, BROKEN, graphs=2).well
    assert not Outcome("test_nonzero_example", RIGHT, NATIVE).well
    assert check("test_constant").how == NOTHING
    assert check("test_image_decoder_decode_bmp_rgb").well


def test_the_summary_names_what_is_not_well() -> None:
    outcomes = [
        Outcome("a", RIGHT, NATIVE, graphs=1, operators=2), Outcome("b", WRONG, detail="numbers differ"),
        Outcome("c", REFUSED_KIND, detail="operator C is not supported where C"), Outcome("d", ERROR, detail="TypeError: x"),
        Outcome("e", CRASH, detail="signal SIGSEGV"), Outcome("f", RIGHT, OUTSIDE, detail="aten.nonzero.default"),
    ]  # fmt: skip
    text = summary(outcomes)
    assert "6 cases, 16.7 % right and compiled: 2 right, 1 wrong, 1 refused, 1 error, 1 crash" in text
    assert "refused: 1 x operator C is not supported" in text
    for name in "bcdef":
        assert f": {name}: " in text
