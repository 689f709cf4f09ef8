"""Networks at samples as one network whose sizes move: what is found, and why it is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from dcir.errors import InvalidInput
from dcir.ir.moving_network import MovingNetwork
from dcir.ir.network import Network
from dcir.ir.refusal import Refusal
from dcir.ir.sizes import Bounds, size
from dcir.ir.verify_moving import verify_moving
from dcir.ops.analysis.size_unification import chosen_samples, few, unified, unified_rows
from tests.harness import run_interpreted
from tests.transforms.imported import imported

S = size("s0")
BOUNDS = {"s0": Bounds(4, 90)}


def seen(fn: Callable[..., Any], shapes: Callable[..., Sequence[Sequence[int]]], bounds: Any = BOUNDS) -> Any:
    """The network of ``fn`` over tensors of these shapes, at all sizes."""
    sizes, samples = chosen_samples(bounds, {3, 8, 16})
    done = [imported(fn, *map(torch.randn, shapes(**s))) for s in samples]
    return unified([d.network for d in done], samples, sizes)


def agrees(
    fn: Callable[..., Any], shapes: Callable[..., Sequence[Sequence[int]]], found: MovingNetwork, at: dict[str, int]
) -> None:
    """Its numbers at some sizes are eager PyTorch's."""
    tensors = list(map(torch.randn, shapes(**at)))
    done = imported(fn, *tensors)
    done.network = found.at(at)
    for g, w in zip(run_interpreted(done, tensors), fn(*tensors), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)


def layers(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.nn.functional.gelu(x @ w)
    return torch.softmax(y @ y.transpose(-1, -2), -1), y.mean(1), y.flip(1), torch.cat((y, x @ w), 1)


def test_one_size_moves() -> None:
    def shapes(s0: int) -> list[list[int]]:
        return [[3, s0, 16], [16, 8]]

    found = seen(layers, shapes)
    assert isinstance(found, MovingNetwork), found
    assert found.containers[found.widest.inputs[0]].strides == (16 * S, 16, 1)
    verify_moving(found)
    for n in (4, 5, 8, 16, 64, 90):
        agrees(layers, shapes, found, {"s0": n})


def test_two_sizes_move_and_multiply() -> None:
    def shapes(s0: int, s1: int) -> list[list[int]]:
        return [[s0, s1, 16], [16, 8]]

    found = seen(layers, shapes, {"s0": Bounds(2, 20), "s1": Bounds(4, 60)})
    assert isinstance(found, MovingNetwork), found
    assert found.widest.results[0].shape != found.results[0].shape == (S, size("s1"), size("s1"))
    verify_moving(found)
    for at in ({"s0": 2, "s1": 60}, {"s0": 16, "s1": 16}, {"s0": 19, "s1": 4}):
        agrees(layers, shapes, found, at)


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: (x if x.shape[0] > 50 else x * 2).sum(0), "the operators are others at s0=6 than at s0=97"),
        (lambda x: x * x.shape[0] ** 0.5, "a fraction that moves"),
        (lambda x: x[: x.shape[0] // 3], "no polynomial"),
        (lambda x: x.reshape(-1)[: min(x.numel(), 300)] * 2, "no polynomial"),
        (lambda x: torch.cumsum(x, 0) if x.shape[0] % 2 else torch.cumprod(x, 0), "differs with the sizes"),
    ],
)
def test_what_is_no_polynomial_is_refused(fn: Callable[..., Any], reason: str) -> None:
    found = seen(fn, lambda s0: [[s0, 8]])
    assert isinstance(found, Refusal) and reason in found.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda net: setattr(net, "memory", net.memory.with_shared((64,))), "memory of inputs or results"),
        (lambda net: net.names.update({net.inputs[0]: "another"}), "inputs, constants and updates"),
        (lambda net: net.add_container((2,), "f32"), "containers"),
    ],
)
def test_tables_that_differ_are_refused(change: Callable[[Network], Any], reason: str) -> None:
    sizes, samples = chosen_samples(BOUNDS)
    nets = [imported(lambda x: x * 2, torch.randn(s["s0"])).network for s in samples]
    change(nets[1])
    found = unified(nets, samples, sizes)
    assert isinstance(found, Refusal) and reason in found.reason


def test_the_last_sample_is_not_just_believed() -> None:
    _, samples = chosen_samples(BOUNDS)
    values = [s["s0"] for s in samples]
    assert unified_rows([(n * n, "a") for n in values], samples) == (S * S, "a")
    assert unified_rows([(n * n + (n == values[-1]), "a") for n in values], samples) is None
    assert unified_rows([(n * (n + 1) // 2,) for n in values], samples) is None


def test_few_samples_show_what_is_linear() -> None:
    _, samples = chosen_samples({"s0": Bounds(2, 64), "s1": Bounds(17, 512)})
    chosen = [samples[i] for i in few(samples)]
    pairs = [tuple(s.values()) for s in chosen]
    T = size("s1")
    assert unified_rows([(3 * s * t - t + 7,) for s, t in pairs], chosen) == (3 * S * T - T + 7,)
    assert unified_rows([(t * t,) for _, t in pairs], chosen) is None
    assert unified_rows([(s * t + (t == 1),) for s, t in pairs[:-1]] + [(0,)], chosen) is None


def test_samples_reach_as_far_as_the_graph_is_right() -> None:
    """The end of a table is no prime, and two sizes that reach equally far are looked at with two numbers."""
    sizes, samples = chosen_samples(
        {"s0": Bounds(2, 126), "s1": Bounds(2, 126)}, {3, 8}, lambda name, value: value <= 126
    )
    assert [b.high for b in sizes.values()] == [126, 125] == [*samples[-1].values()]
    assert all(n not in (3, 8) and n <= 126 for s in samples for n in s.values())
    (last,) = (
        b.high for b in chosen_samples({"s0": Bounds(2, 512)}, {512}, lambda name, value: value <= 512)[0].values()
    )
    assert last == 511
    with pytest.raises(InvalidInput, match="too few values"):
        chosen_samples({"s0": Bounds(2, 126)}, (), lambda name, value: value < 6)


def test_samples_are_no_other_extent_and_reach_both_ends() -> None:
    for bounds in ({"s0": Bounds(2, 512)}, {"s0": Bounds(2, 64), "s1": Bounds(17, 512)}):
        sizes, samples = chosen_samples(bounds, {2, 67, 512, 521})
        for name, (low, high) in bounds.items():
            numbers = [s[name] for s in samples]
            assert not {2, 67, 512, 521} & set(numbers) and low <= min(numbers) <= low + 4 and max(numbers) >= high
            assert samples[-1][name] == sizes[name].high == max(numbers)
        columns = np.array([[*s.values()] for s in samples])
        assert len(np.unique(columns, axis=0)) == len(samples)
    if len(samples[0]) == 2:
        assert not set(columns[:, 0]) & set(columns[:, 1])


@pytest.mark.parametrize(
    "bounds", [{}, {"s0": Bounds(0, 90)}, {"s0": Bounds(4, 8)}, dict.fromkeys(("s0", "s1", "s2"), Bounds(4, 90))]
)
def test_bounds_without_enough_values_are_refused(bounds: dict[str, Bounds]) -> None:
    with pytest.raises(InvalidInput):
        chosen_samples(bounds)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(InvalidInput):
        unified_rows([(1,), (2,)], [{"s0": 1}, {"s0": 2}])
    with pytest.raises(InvalidInput):
        unified_rows([(1,)] * 5, [{"s0": 1}] * 5)
