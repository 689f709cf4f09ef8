"""Operators that stock DaCe's code calls back for: their numbers, those they draw, and what they raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import dcir
from dcir.driver.verify.through_dace import dace_program
from dcir.errors import FallbackFailed
from dcir.frontends.torch.importer import import_graph
from dcir.ir.dace.target import compile_network
from dcir.ir.network import Network
from dcir.ops.library.torch_call import TorchCall
from dcir.ops.lowering import Lowering, Ref
from tests.bodies import body, called, graph, interpreted, loop, numbers, tensor
from tests.harness import graph_of_calls, run_cpp, run_dace
from tests.transforms.build import unary

aten = torch.ops.aten


def test_operands_of_every_kind() -> None:
    """Strides, one element, none at all, half types, truth values and complex numbers."""
    square = torch.randn(2, 3, 3)
    calls: list[tuple[Any, list[Any]]] = [
        (aten.linalg_inv_ex.default, [square.transpose(1, 2)]),
        (aten.linalg_inv_ex.default, [torch.randn(1, 1)]),
        (aten.linalg_inv_ex.default, [torch.randn(0, 2, 2)]),
        (aten.renorm.default, [torch.randn(4, 3).bfloat16(), 2.0, 0, 1.0]),
        (aten.renorm.default, [torch.randn(4, 3).half(), 2.0, 0, 1.0]),
        (aten._fft_r2c.default, [torch.randn(5), [0], 0, True]),
        (aten.unfold_copy.default, [torch.randn(6) > 0, 0, 2, 2]),
    ]
    gm, tensors = graph_of_calls([(op, args, {}) for op, args in calls])
    done = import_graph(gm)
    assert len(done.fallbacks) >= 5
    want = [t for op, args in calls for t in _listed(op(*args))]
    for got, right in zip(run_dace(done, tensors), want, strict=True):
        torch.testing.assert_close(got, right)


def _listed(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def test_random_numbers_are_drawn_in_order() -> None:
    """Nothing but their order joins these calls; eager and generated code draw the same."""
    size = {"pin_memory": False}
    calls: list[tuple[Any, Sequence[Any], dict[str, Any]]] = [
        (aten.rand.default, [[3]], size), (aten.randn.default, [[2, 2]], size), (aten.rand.default, [[4]], size),
        (aten.randperm.default, [6], size), (aten.bernoulli.p, [torch.empty(5), 0.5], {}),
        (aten.multinomial.default, [torch.ones(7), 3], {}),
    ]  # fmt: skip
    gm, tensors = graph_of_calls(calls)
    done = import_graph(gm)
    found = []
    for run in (lambda: [op(*args, **kwargs) for op, args, kwargs in calls], lambda: run_cpp(done, tensors),
                lambda: run_dace(done, tensors)):  # fmt: skip
        torch.manual_seed(5)
        found.append(run())
        found[-1].append(torch.get_rng_state())
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)


def test_what_a_call_raises_reaches_the_caller() -> None:
    gm, _ = graph_of_calls([(aten.linalg_cholesky_ex.default, [torch.eye(2)], {"check_errors": True})])
    program = dace_program(import_graph(gm))
    for _ in range(2):
        with pytest.raises(FallbackFailed, match="linalg_cholesky_ex"):
            program([-torch.eye(2)])
        torch.testing.assert_close(program([4 * torch.eye(2)])[0], 2 * torch.eye(2))


def test_in_a_loop() -> None:
    """Once a trip, where the window of that trip begins."""

    def one(c: Lowering, h: Ref, x: Ref) -> list[Ref]:
        meta, made = ((4,), (1,), "f32"), c.new((4,), "f32")
        c.emit(TorchCall("aten.add.Tensor", (("t", 0), ("t", 1)), (), (meta, meta), (meta,), (0,)), [h, x], [made])
        return [unary(c, "neg", made)]

    net = graph([tensor(4), tensor(3, 4)], lambda c, h, xs: loop(c, body([tensor(4), tensor(4)], one), 3, [h], [xs]))
    given = numbers(net)
    torch.testing.assert_close(run_dace(called(net), given), interpreted(net, given))


def test_a_program_of_its_own_keeps_no_hold_on_others() -> None:
    """Two libraries are loaded at once; each calls back to its own program."""

    def twice(name: str) -> Network:
        meta = ((4,), (1,), "f32")

        def make(c: Lowering, x: Ref) -> list[Ref]:
            made = c.new((4,), "f32")
            c.emit(TorchCall(name, (("t", 0),), (), (meta,), (meta,), (0,)), [x], [made])
            return [made]

        return graph([tensor(4)], make)

    nets = [twice("aten.neg.default"), twice("aten.exp.default")]
    programs, x = [compile_network(net) for net in nets], torch.arange(4.0)
    for program, net, want in zip(programs, nets, (-x, x.exp()), strict=True):
        found = program([x.numpy()])[net.results[0].data]
        torch.testing.assert_close(torch.from_numpy(found), want)


def test_graphs_that_torch_runs() -> None:
    """An operator over graphs that has no form in dcir runs through torch, and these with it."""
    cases = (lambda x: x.sin(), lambda x: torch.linalg.inv(x).contiguous())

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, *cases, (x,))

    fast = dcir.optimize(fn, target="dace")
    for x in (torch.eye(3) + 1, -torch.eye(3)):
        torch.testing.assert_close(fast(x), fn(x))
