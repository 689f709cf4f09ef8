"""A training step and an inference of real architectures, with random weights, follow eager PyTorch.

Those of transformers, timm, torchvision and segmentation-models run where the extra is installed:
``pip install -e '.[test,architectures]'``. Every commit takes some of them (``tests/rotation.py``), DCIR_TEST_ALL=1 takes all.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
from collections.abc import Callable

import pytest
import torch

import dcir
from tests.endtoend.architectures import ARCHITECTURES, TRAINED_IN_DOUBLE
from tests.endtoend.follows_eager import follow
from tests.endtoend.plain_architectures import PLAIN
from tests.endtoend.plain_images import PLAIN_IMAGES
from tests.rotation import chosen

_AT_ONCE = 5
_ALWAYS = PLAIN | PLAIN_IMAGES


def _import_or_skip(package: str) -> None:
    """Skip where ``package`` is missing."""
    if importlib.util.find_spec("torchvision") is not None:
        try:
            import torchvision  # noqa: F401
        except RuntimeError:
            # The wheels of torchvision on PyPI are built with CUDA. Beside a torch without it their library does not load,
            # and the import fails at the shapes of two operators in it, which no network here calls: declare them.
            with contextlib.suppress(RuntimeError):  # an earlier test has
                for name in ("nms", "qnms"):
                    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float limit) -> Tensor")
    pytest.importorskip(package, reason=f"{package} is not installed: pip install -e '.[test,architectures]'")


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", list(_ALWAYS))
def test_plain(name: str, train: bool) -> None:
    torch.manual_seed(0)
    done = follow(*_ALWAYS[name](), train=train)
    assert not done.wrong
    assert done.operators and not done.fallbacks and not done.breaks


_CASES = [
    (name, train) for name in ARCHITECTURES for train in (False, True) if not (train and name in TRAINED_IN_DOUBLE)
]


@pytest.mark.parametrize(("name", "train"), _CASES, ids=[f"{n}-{'training' if t else 'inference'}" for n, t in _CASES])
def test_installed(name: str, train: bool, record_property: Callable[[str, object], None]) -> None:
    if name not in chosen(sorted(ARCHITECTURES), _AT_ONCE):
        pytest.skip("architectures that have their turn with another commit; DCIR_TEST_ALL=1 runs all")
    _import_or_skip(name.partition("-")[0])
    record_property("architecture", name)
    torch.manual_seed(0)
    done = follow(*ARCHITECTURES[name](), train=train)
    assert not done.wrong
    assert done.operators


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("name", sorted(TRAINED_IN_DOUBLE))
def test_trained_in_double(name: str) -> None:
    """Outputs and gradients to ten digits: kinks that float32 cannot tell apart are none in float64."""
    _import_or_skip(name.partition("-")[0])
    torch.manual_seed(0)
    module, inputs = ARCHITECTURES[name]()
    module, given = module.double().train(), {k: v.double() for k, v in inputs.items()}
    eager = copy.deepcopy(module)
    results = []
    for m in (dcir.optimize(module), eager):
        torch.manual_seed(1)  # the same dropout
        results.append(m(**given))
    got, want = (r if isinstance(r, torch.Tensor) else r[0] for r in results)
    weights = torch.randn_like(want)
    for y in (got, want):
        (y * weights).sum().backward()
    pairs = [(got, want), *((p.grad, q.grad) for p, q in zip(module.parameters(), eager.parameters(), strict=True))]
    # A bias in front of a normalisation has no gradient but rounding.
    rounding = 1e-12 * max(theirs.abs().max() for _, theirs in pairs if theirs is not None)
    for ours, theirs in pairs:
        if theirs is None:  # of an output that nobody used; one graph has all gradients
            assert ours is None or not ours.any()
        else:
            assert (ours - theirs).abs().max() <= 1e-10 * theirs.abs().max() + rounding
