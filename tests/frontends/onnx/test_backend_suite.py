"""ONNX's own backend suite, run eagerly through `dcir.onnx_backend`: every case passes or is on an exact list."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontends.onnx.backend_suite import (
    EXPECTED,
    RANDOM,
    REFUSED,
    ROUNDING,
    Eager,
    cases_of,
    is_core,
    node_cases,
    problem,
)

NODES = node_cases()
CASES = cases_of(Eager)
APART = {*RANDOM, *ROUNDING}


def _families() -> dict[str, list[str]]:
    families: dict[str, list[str]] = {}
    for name in sorted(set(CASES) - APART):
        families.setdefault(name.split("_")[1], []).append(name)
    return families


FAMILIES = _families()


@pytest.fixture(autouse=True)
def _models_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # The runner writes what it finds for its bundled networks below this folder, by default in the user's home.
    monkeypatch.setenv("ONNX_MODELS", str(tmp_path))
    yield


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_cases(family: str) -> None:
    problems = [text for name in FAMILIES[family] if (text := problem(name, CASES[name]))]
    assert not problems, "\n".join(problems)


def test_the_lists_name_cases_that_exist() -> None:
    listed = [*REFUSED, *RANDOM, *ROUNDING]
    assert len(listed) == len(set(listed))
    assert set(listed) <= set(CASES)


def test_coverage() -> None:
    """Shares of cases that are not refused. That they are right is what the other tests here say."""
    core = [name for name, case in NODES.items() if is_core(case.model)]
    assert len(core) > 1000
    assert sum(name not in REFUSED for name in core) >= 0.95 * len(core)
    assert sum(name not in REFUSED for name in CASES) >= 0.88 * len(CASES)


def _results(name: str, times: int = 1) -> Iterator[tuple[list[Any], list[Any], list[Any]]]:
    """Inputs, stored results, and ours."""
    case = NODES[name]
    prepared = Eager.prepare(case.model)
    for _ in range(times):
        for inputs, stored in case.data_sets:
            yield inputs, stored, list(prepared.run(inputs))


@pytest.mark.parametrize("name", EXPECTED["random"]["bernoulli"])
def test_bernoulli(name: str) -> None:
    draws = []
    chance = np.asarray(NODES[name].data_sets[0][0][0], np.float64)
    if "expanded" in name:
        # The body that ONNX gives for the operator asks whether a uniform number is greater than the chance.
        chance = 1 - chance
    for _, (stored,), (have,) in _results(name, times=400):
        assert (have.shape, have.dtype) == (stored.shape, stored.dtype)
        assert set(np.unique(have)) <= {0, 1}
        draws.append(have)
    # Six standard deviations of the mean: one run in 10^8 of a right generator fails.
    bound = 6 * np.sqrt(chance * (1 - chance) / len(draws)) + 1e-12
    if "seed" not in name:
        assert np.all(np.abs(np.mean(draws, axis=0) - chance) <= bound)
    else:
        total, spread = np.mean(draws[0]) - chance.mean(), math.sqrt(float((chance * (1 - chance)).sum()))
        assert abs(total) * chance.size <= 6 * spread


@pytest.mark.parametrize("name", EXPECTED["random"]["dropout"])
def test_dropout(name: str) -> None:
    kept, count = 0, 0
    for inputs, stored, have in _results(name, times=50):
        ratio = float(inputs[1]) if len(inputs) > 1 else 0.5
        assert [(h.shape, h.dtype) for h in have] == [(s.shape, s.dtype) for s in stored]
        mask = have[1] if len(have) > 1 else have[0] != 0
        np.testing.assert_allclose(have[0], np.where(mask, inputs[0] / (1 - ratio), 0), rtol=1e-6)
        kept, count = kept + int(mask.sum()), count + mask.size
    assert abs(kept / count - (1 - ratio)) <= 6 * math.sqrt(ratio * (1 - ratio) / count)


def _attention(q: Any, k: Any, v: Any, *, causal: bool) -> Any:
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("name", EXPECTED["rounding"]["attention"])
def test_attention_in_half_precision(name: str) -> None:
    for inputs, (stored,), (have,) in _results(name):
        exact = _attention(*(np.asarray(x, np.float64) for x in inputs[:3]), causal="causal" in name)
        _check_closer(have, stored, exact, unit=2.0**-11)


@pytest.mark.parametrize("name", EXPECTED["rounding"]["inverse_dft"])
def test_inverse_dft(name: str) -> None:
    axis = {"test_dft_inverse": 1, "test_dft_inverse_opset19": 1}[name]
    for inputs, (stored,), (have,) in _results(name):
        wide = np.asarray(inputs[0], np.float64)
        exact = np.fft.ifft(wide[..., 0] + 1j * wide[..., 1], axis=axis)
        _check_closer(have, stored, np.stack([exact.real, exact.imag], -1), unit=2.0**-24)


def _check_closer(have: Any, stored: Any, exact: Any, unit: float) -> None:
    """Ours is as near to the exact result as the stored one at its worst, and within a few roundings of it."""
    assert (have.shape, have.dtype) == (stored.shape, stored.dtype)
    error, theirs = (np.abs(x.astype(np.float64) - exact).max() for x in (have, stored))
    assert error <= theirs
    assert error <= 4 * unit * np.abs(exact).max()


def test_a_passing_case_on_the_list_is_found() -> None:
    def refuse() -> None:
        CASES["test_image_decoder_decode_bmp_rgb"]()

    listed = next(iter(REFUSED))
    assert "on the list of refusals" in str(problem(listed, lambda: None))
    assert "not on the list" in str(problem("test_abs", refuse))
    assert problem("test_abs", _wrong) is not None


def _wrong() -> None:
    raise AssertionError("numbers differ")
