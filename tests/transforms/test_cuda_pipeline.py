"""The pipeline for GPUs: its order is what its passes ask for, and nothing in it is for CPUs alone."""

from __future__ import annotations

import pytest

from dcir.transforms.cuda_pipeline import CUDA_PASSES, cuda_pipeline
from dcir.transforms.pipelines import PASSES


def test_passes_come_after_what_they_name() -> None:
    names = [p.name for p in CUDA_PASSES]
    for i, p in enumerate(CUDA_PASSES):
        assert not set(p.after) & set(names[i + 1 :]) - set(names[:i]), p.name
        assert not set(p.before) & set(names[:i]), p.name


def test_nothing_is_rewritten_behind_what_is_final() -> None:
    first = next(i for i, p in enumerate(CUDA_PASSES) if p.final)
    assert all(p.tier == 4 for p in CUDA_PASSES[first:])


def test_the_order_is_that_of_the_other_pipeline() -> None:
    left = iter([p.name for p in PASSES])  # some passes run twice
    shared = [p.name for p in CUDA_PASSES if p.name in {q.name for q in PASSES}]
    assert [name for name in shared if name not in left] == []


@pytest.mark.parametrize("name", ["use-winograd", "pack-weights", "run-per-image", "lower-to-im2col", "use-dots"])
def test_what_is_about_processors_is_left_out(name: str) -> None:
    assert name in {p.name for p in PASSES} and name not in {p.name for p in CUDA_PASSES}


def test_levels() -> None:
    assert cuda_pipeline(0) == ()
    assert all(set(cuda_pipeline(i)) <= set(cuda_pipeline(i + 1)) for i in range(4))
    assert cuda_pipeline(4) == CUDA_PASSES
