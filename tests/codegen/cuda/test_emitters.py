"""Operator samples through the twin against their references; and what an operator without kernels says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from dcir.codegen.cuda.emitters import plan_of
from dcir.codegen.cuda.launch import CudaPlan
from dcir.frontends.torch.importer import import_graph
from dcir.ir.refusal import Refusal
from dcir.ops.pages import binary
from dcir.ops.registry import Sample, pages
from tests.codegen.cuda.nests import layer_norm, softmax
from tests.codegen.cuda.samples import Case, case_of, launches_of, run_case
from tests.codegen.cuda.twin import Twin
from tests.harness import fits, graph_of

DIVIDING: list[tuple[str, dict[str, str]]] = [
    ("aten.floor_divide.default", {}),
    ("aten.remainder.Tensor", {}),
    ("aten.fmod.Tensor", {}),
    ("aten.div.Tensor_mode", {"rounding_mode": "trunc"}),
    ("aten.div.Tensor_mode", {"rounding_mode": "floor"}),
]
PARTS = 4
EVERY = 6
"""One page in so many, with all kinds of samples among them."""


def _cases(part: int) -> list[Case]:
    """Samples of some pages: of each its first, and one that a fixed seed chooses."""
    chosen = [p for p in pages().values() if p.overload is not None][:: EVERY // 2]
    found = []
    for page in chosen[part::PARTS]:
        samples = [s for s in page.samples() if fits(page.overload, s)]
        picked = {0, random.Random(page.name).randrange(max(len(samples), 1))}
        for number in sorted(picked & set(range(len(samples)))):
            case = case_of(page, samples[number], f"{page.name}[{number}] {samples[number].name}")
            if case is not None:
                found.append(case)
    return found


@pytest.mark.parametrize("part", range(PARTS))
def test_samples_of_operators_agree_with_their_references(part: int, tmp_path: Path) -> None:
    cases = _cases(part)
    assert len(cases) > 20
    twin = Twin(launches_of(cases), tmp_path)
    wrong = [text for case in cases if (text := run_case(case, twin))]
    assert not wrong, "\n".join(wrong)


def test_integers_divided_by_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What CPUs leave to torch for its error has kernels on GPUs: all signs and remainders, but no zero: those torch leaves open."""
    monkeypatch.setattr(binary, "device", lambda: "cuda")  # of tensors that are on the CPU
    divisors = torch.tensor([-7, -3, -1, 1, 2, 5])
    cases = []
    for name, kwargs in DIVIDING:
        for dtype in (torch.int64, torch.int32, torch.int8):
            a, b = torch.arange(-20, 21, dtype=dtype)[:, None], divisors.to(dtype)
            case = case_of(pages()[name], Sample((a, b), kwargs), f"{name} {kwargs} {dtype}")
            assert case is not None and not case.refused, case
            cases.append(case)
    twin = Twin(launches_of(cases), tmp_path)
    wrong = [text for case in cases if (text := run_case(case, twin))]
    assert not wrong, "\n".join(wrong)


def test_what_calls_torch_is_refused() -> None:
    graph, _ = graph_of(torch.ops.aten.bernoulli.p, (torch.zeros(3), 0.5), {})
    (spec,) = (op.spec for op in import_graph(graph).network.ops())
    refused = plan_of(spec)
    assert isinstance(refused, Refusal)
    assert "runs through torch" in refused.reason


def test_equal_nests_have_equal_kernels_whose_names_follow_from_their_text() -> None:
    plans = [plan_of(softmax(4, 100)), plan_of(softmax(4, 100)), plan_of(softmax(4, 104))]
    first, again, other = (p for p in plans if isinstance(p, CudaPlan))
    assert first == again
    assert first.launches[0].kernel != other.launches[0].kernel
    launch = first.launches[0]
    assert launch.text.startswith(f'extern "C" __global__ void __launch_bounds__({launch.block[0]}) {launch.kernel}(')


def test_offsets_are_64_bits_wide_only_where_they_have_to_be() -> None:
    small, large = plan_of(layer_norm(1000, 1024)), plan_of(layer_norm(3_000_000, 1024))
    assert isinstance(small, CudaPlan)
    assert isinstance(large, CudaPlan)
    assert "const int row" in small.launches[0].text
    assert "const long long row" in large.launches[0].text
