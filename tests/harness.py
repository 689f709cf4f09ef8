"""Test helpers: run one operator or function through the importer and a way of executing the network."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from dcir.frontends.torch.importer import Imported, import_graph
from dcir.ir.interpret import interpret
from dcir.ir.verify import verify
from tests.on_host import on_host


def graph_of(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """A graph of one operator call, with fake tensors in its nodes, and the call's tensors in input order."""
    return graph_of_calls([(op, args, kwargs)])


def graph_of_calls(
    calls: Sequence[tuple[Any, Sequence[Any], dict[str, Any]]],
) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """A graph of independent operator calls; its outputs are all their results in order."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    graph, tensors, outs = fx.Graph(), [], []

    def place(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder(f"arg{len(tensors)}")
        node.meta["val"] = mode.from_tensor(value)
        tensors.append(value)
        return node

    placed = [(op, *pytree.tree_map(place, (list(args), dict(kwargs)))) for op, args, kwargs in calls]
    for op, a, k in placed:
        node = graph.call_function(op, tuple(a), k)
        fake_a, fake_k = pytree.tree_map(lambda n: n.meta["val"] if isinstance(n, fx.Node) else n, (tuple(a), k))
        with mode:
            node.meta["val"] = op(*fake_a, **fake_k)
        values = node.meta["val"]
        if isinstance(values, torch.Tensor):
            outs.append(node)
            continue
        for i, v in enumerate(values):
            item = graph.call_function(operator.getitem, (node, i))
            item.meta["val"] = v
            outs.append(item)
    graph.output(tuple(outs))
    return fx.GraphModule(torch.nn.Module(), graph), tensors


def flat_buffer(t: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor's elements from the first to the last, as stored."""
    size = 0 if t.numel() == 0 else 1 + sum((d - 1) * s for d, s in zip(t.shape, t.stride(), strict=True))
    flat = torch.as_strided(t.detach(), (size,), (1,))
    return (flat.view(torch.int16).numpy().view(np.uint16) if t.dtype == torch.bfloat16 else flat.numpy()).copy()


def scalar_reference() -> Callable[[str], Callable[..., Any]]:
    """The table of reference functions of scalar operators."""
    from dcir.ir.scalars import reference

    return reference


def run_interpreted(done: Imported, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Run an imported graph with the reference interpreter; returns tensors and literals."""
    net = done.network
    verify(net)
    return _results(done, interpret(net, buffers_of(done, tensors)))


def run_dace(done: Imported, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Run an imported graph through stock DaCe."""
    from dcir.ir.dace.target import compile_network

    program, buffers = compile_network(done.network), buffers_of(done, tensors)
    return _results(done, program([buffers[n] for n in program.arguments]))


def buffers_of(done: Imported, tensors: Sequence[torch.Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    """The elements of inputs and constants, by container."""
    buffers = {n: flat_buffer(t) for n, t in zip(done.network.inputs, tensors, strict=True) if n}
    return buffers | {n: flat_buffer(t) for n, t in done.constants.items()}


def _results(done: Imported, store: dict[str, np.ndarray[Any, Any]]) -> list[Any]:
    """What the graph returns, from the elements of its containers."""
    net = done.network
    outs: list[Any] = []
    for kind, v in done.outputs:
        if kind == "literal":
            outs.append(v)
            continue
        r = net.results[v]
        t = torch.from_numpy(store[r.data])
        if r.dtype == "bf16":
            t = t.view(torch.bfloat16)
        outs.append(torch.as_strided(t, r.shape, r.strides, r.offset))
    return outs


def check_close(got: Any, want: Any, exact: Any, *, factor: float = 3.0, units: float = 4.0, what: str = "") -> None:
    """The comparison rule: error against float64 at most ``factor`` times eager's own, plus a few ``units`` in the last place."""
    if not isinstance(want, torch.Tensor):
        assert got == want, what
        return
    assert got.shape == want.shape and got.dtype == want.dtype, f"{what}: {got.dtype}{tuple(got.shape)}"
    if not want.dtype.is_floating_point:
        assert torch.equal(got, want), f"{what}: {got} != {want}"
        return
    g, w = got.double(), want.double()
    e = exact.double() if isinstance(exact, torch.Tensor) else w
    assert torch.equal(g.isnan(), w.isnan()), f"{what}: NaN in other places"
    finite = w.isfinite() & g.isfinite() & e.isfinite()
    endless = w.isinf() | g.isinf()
    assert torch.equal(g[endless], w[endless]), f"{what}: infinities"
    if not finite.any():
        return
    eps = torch.finfo(want.dtype).eps
    scale = e[finite].abs().max().item()
    ours, eager = (g - e)[finite].abs().max().item(), (w - e)[finite].abs().max().item()
    assert ours <= factor * eager + units * eps * max(scale, 1e-30), (
        f"{what}: error {ours:.3g}, eager's own {eager:.3g}, scale {scale:.3g}"
    )


def double(value: Any) -> Any:
    """Arguments in float64, for the exact reference."""
    return pytree.tree_map(
        lambda v: v.double() if isinstance(v, torch.Tensor) and v.dtype.is_floating_point else v, value
    )


def fits(op: Any, sample: Any) -> bool:
    """Whether a sample has the types this overload wants (pages share samples between Tensor and Scalar overloads)."""
    positional = [a for a in op._schema.arguments if not a.kwarg_only]
    if len(sample.args) > len(positional):
        return False
    if any(not a.has_default_value() and a.name not in sample.kwargs for a in positional[len(sample.args) :]):
        return False
    for a, v in zip(op._schema.arguments, sample.args, strict=False):
        is_tensor = isinstance(v, torch.Tensor)
        kind = str(a.type)
        if is_tensor and kind in ("number", "Optional[number]", "float", "Optional[float]", "int", "bool"):
            return False
        if kind in ("Tensor", "Optional[Tensor]") and not is_tensor and v is not None:
            numbers = torch._C._should_allow_numbers_as_tensors(op._schema.name.split("::")[1])
            if a.name in ("self", "exponent") or kind != "Tensor" or not numbers:
                return False
        if kind == "int" and not isinstance(v, int):
            return False
        if kind == "List[int]" and isinstance(v, int) and a.name == "split_sizes":
            return False
    return True


def expected(page: Any, sample: Any) -> tuple[list[Any], list[Any]]:
    """Eager results of a sample, and the same in float64."""
    op = page.overload
    want = op(*sample.args, **sample.kwargs)
    try:
        exact = op(*double(sample.args), **double(sample.kwargs))
    except (
        RuntimeError,
        TypeError,
    ):  # it has no form in float64; eager is the reference then, without an error of its own
        exact = want
    return ([want] if isinstance(want, torch.Tensor) else list(want)), (
        [exact] if isinstance(exact, torch.Tensor) else list(exact)
    )


def check_results(page: Any, sample: Any, got: Sequence[Any], *, units: float = 4.0) -> None:
    """Results of one sample against eager torch."""
    wants, exacts = expected(page, sample)
    for g, w, e in zip(got, wants, exacts, strict=True):
        check_close(g, w, e, factor=page.tolerance, units=units, what=f"{page.name} {sample.name}")


def check_operator(
    page: Any, sample: Any, run: Callable[[Imported, Sequence[torch.Tensor]], list[Any]] = run_interpreted
) -> None:
    """One sample of one page, native, against eager torch."""
    gm, tensors = graph_of(page.overload, sample.args, sample.kwargs)
    done = import_graph(gm)
    on_host(done.network)
    assert not done.fallbacks, f"{page.name} went through torch"
    check_results(page, sample, run(done, tensors))


def run_cpp(done: Imported, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Run an imported graph through the generated C++."""
    from dcir.codegen.compile import compile_network
    from dcir.driver.assemble import assemble

    return assemble(done, compile_network(on_host(done.network)))(list(tensors))


def all_samples() -> list[tuple[Any, Any, int]]:
    """Every (page, sample, number) of the registry."""
    from dcir.ops.registry import pages

    return [
        (p, s, i)
        for p in pages().values()
        if p.overload is not None
        for i, s in enumerate(s for s in p.samples() if fits(p.overload, s))
    ]


def example_models() -> Any:
    """The module ``examples/models.py`` (examples are no package)."""
    import importlib.util
    import sys
    from pathlib import Path

    spec = importlib.util.spec_from_file_location(
        "example_models", Path(__file__).parents[1] / "examples" / "models.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dynamo imports the modules it traces by name
    spec.loader.exec_module(module)
    return module


def keeping() -> tuple[Any, list[Any]]:
    """A backend for torch.compile, and the networks it has rewritten, as they are when code is made."""
    from dcir.driver.compile import Compilation
    from dcir.driver.session import Session
    from dcir.frontends.torch.capture import dynamo_backend
    from dcir.options import Options

    kept: list[Any] = []
    session = Session(Options.make())

    class Keeping(Compilation):
        def rewritten(self, gm):  # type: ignore[no-untyped-def]
            done = super().rewritten(gm)
            kept.append(done.network)
            return done

    return dynamo_backend(lambda gm, context: Keeping(session, context).compiled(gm)), kept
