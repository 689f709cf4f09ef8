"""The loop nest of a scatter against its reference, sample by sample."""

from __future__ import annotations

import numpy as np
import pytest

from dcir.frontends.torch.importer import import_graph
from dcir.ir.interpret import interpret
from dcir.ops.library.scatter import ScatterSpec
from tests.harness import all_samples, flat_buffer, graph_of
from tests.on_host import on_host


def cases() -> list[object]:
    """Samples of the pages that make scatters."""
    names = ("scatter", "index_put", "index_add", "index_copy", "embedding_dense_backward", "put")
    return [
        pytest.param(p, s, id=f"{p.name}-{i}-{s.name}") for p, s, i in all_samples() if any(n in p.name for n in names)
    ]


@pytest.mark.parametrize(("page", "sample"), cases())
def test_same_numbers(page, sample) -> None:  # type: ignore[no-untyped-def]
    gm, tensors = graph_of(page.overload, sample.args, sample.kwargs)
    done = import_graph(gm)
    on_host(done.network)
    net = done.network
    buffers = {n: flat_buffer(t) for n, t in zip(net.inputs, tensors, strict=True) if n}
    want = interpret(net, buffers)
    for op in net.ops():
        if isinstance(op.spec, ScatterSpec):
            net.rewire(op, op.spec.loop_nest(), net.ins(op), net.outs(op), made_by="test")
    got = interpret(net, buffers)
    for r in net.results:
        a, b = want[r.data], got[r.data]
        if r.dtype == "bf16":
            a, b = a >> 2, b >> 2
        np.testing.assert_allclose(b.astype(np.float64), a.astype(np.float64), rtol=1e-2 if "16" in r.dtype else 1e-5)
