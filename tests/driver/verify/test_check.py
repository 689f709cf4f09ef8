"""The differential check: it lets right passes through and names the first wrong one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from dcir.driver.verify.check import PassChecker, index_bounds
from dcir.errors import VerificationFailed
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.pipelines import pipeline
from dcir.transforms.runner import run_passes
from tests.transforms.imported import imported
from tests.transforms.random_network import random_network


@dataclass(frozen=True)
class SwapOperators(Pass):
    """Breaks a network: one scalar operator becomes another."""

    old: str = "tanh"
    new: str = "sin"

    def apply(self, net: Network) -> PassResult:
        """Replace it everywhere."""
        outcome = PassResult()
        for op in net.ops():
            if isinstance(op.spec, LoopNest) and any(s.op == self.old for s in op.spec.body):
                body = tuple(replace(s, op=self.new) if s.op == self.old else s for s in op.spec.body)
                net.rewire(op, replace(op.spec, body=body), net.ins(op), net.outs(op))
                outcome.changed += 1
        return outcome


@dataclass(frozen=True)
class DoNothing(Pass):
    """Claims to have changed something."""

    def apply(self, net: Network) -> PassResult:
        """One change."""
        return PassResult(changed=1)


def test_the_wrong_pass_is_named() -> None:
    net = imported(lambda x: (x.exp(), torch.tanh(x) + 1), torch.randn(4, 6)).network
    with pytest.raises(VerificationFailed) as e:
        run_passes(net, [DoNothing(), SwapOperators(), DoNothing()], after=PassChecker(net, 0))
    assert "pass swap-operators changed" in str(e.value)
    details = dict(e.value.details)
    assert details["result"] == "1 of 2: f32 4x6" and float(details["error"]) > float(details["tolerance"])


def test_a_wrong_comparison_is_found() -> None:
    net = imported(lambda x: x > x.mean(), torch.randn(40, 60)).network
    with pytest.raises(VerificationFailed):
        run_passes(net, [SwapOperators("gt", "le")], after=PassChecker(net))


def test_what_was_finite_stays_finite() -> None:
    net = imported(lambda x: torch.rsqrt(x.abs() + 1), torch.randn(40, 60)).network
    with pytest.raises(VerificationFailed, match="swap-operators"):
        run_passes(net, [SwapOperators("add", "sub"), SwapOperators("abs", "neg")], after=PassChecker(net))


@pytest.mark.parametrize("seed", range(10))
def test_right_passes_go_through(seed: int) -> None:
    net = random_network(seed)
    run_passes(net, pipeline(4), after=PassChecker(net, seed))


def test_cancellation_is_no_error() -> None:
    """The gradient of a sum over a soft-max is zero but for rounding, which passes may change."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1)
        return y - y * (y.sum(-1, keepdim=True) / y.sum(-1, keepdim=True)) + (y.sum(-1, keepdim=True) - 1)

    net = imported(fn, torch.randn(8, 50)).network
    run_passes(net, pipeline(4), after=PassChecker(net))


def test_a_network_with_everything() -> None:
    embedding, target = torch.randn(11, 12), torch.randint(0, 5, (6,))

    def fn(
        ids: torch.Tensor, weight: torch.Tensor, var: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        x = torch.nn.functional.embedding(ids, weight)
        x = torch.nn.functional.batch_norm(x, var, var, None, None)
        x = torch.nn.functional.dropout(x, 0.5)
        return torch.nn.functional.cross_entropy(x, target), x.bfloat16(), x.argmax(-1), torch.cumsum(ids, 0)

    net = imported(fn, torch.randint(0, 11, (6,)), embedding, torch.rand(12) + 1, target).network
    bounds = index_bounds(net)
    assert bounds.get(net.inputs[0], 0) in range(1, 12) and bounds.get(net.inputs[3], 0) in range(1, 13)
    checker = PassChecker(net)
    assert checker.buffers[net.inputs[0]].max() < 11 and checker.buffers[net.inputs[3]].max() < 12
    run_passes(net, pipeline(4), after=checker)


def test_a_network_that_does_not_run_is_said_so() -> None:
    net = imported(torch.linalg.cholesky, torch.eye(3)).network
    with pytest.warns(UserWarning, match="not checked"):
        checker = PassChecker(net)
    run_passes(net, [DoNothing()], after=checker)
