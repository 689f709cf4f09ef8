"""Attention: the plain steps equal the reference, exact work, no score matrix in memory, the same bits on any threads."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import dcir
from dcir.codegen.cpp.emitters import plan
from dcir.cost.machine import Machine
from dcir.frontends.torch.importer import import_graph
from dcir.ir.run_nest import run_program
from dcir.ir.serialize import decode, encode
from dcir.ir.types import to_numpy
from dcir.isa import ISAS, host_isa
from dcir.ops.library.attention import AttentionSpec
from dcir.ops.registry import pages
from tests.harness import flat_buffer, graph_of, run_cpp, scalar_reference
from tests.on_host import on_host

NAMES = ("aten._scaled_dot_product_flash_attention_for_cpu.default",
         "aten._scaled_dot_product_flash_attention_for_cpu_backward.default")  # fmt: skip
SAMPLES = [pytest.param(n, s, id=f"{n.split('.')[1][-8:]}-{s.name}") for n in NAMES for s in pages()[n].samples()]


def _imported(name: str, sample: Any) -> tuple[AttentionSpec, Any, Any]:
    gm, tensors = graph_of(pages()[name].overload, sample.args, sample.kwargs)
    done = import_graph(gm)
    on_host(done.network)
    (op,) = done.network.ops()
    return op.spec, done, tensors


@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_steps_equal_reference(name: str, sample: Any) -> None:
    """The programs over a stored score matrix compute what the reference computes."""
    spec, done, tensors = _imported(name, sample)
    net = done.network
    (op,) = net.ops()
    by_name = dict(zip(net.inputs, tensors, strict=True))
    ins = [flat_buffer(by_name[o.data]) for o in net.ins(op)]
    outs = [np.zeros(net.containers[o.data].size, to_numpy(net.containers[o.data].dtype)) for o in net.outs(op)]
    wants = [o.copy() for o in outs]
    spec.reference(ins, wants)
    temporaries, steps = spec.steps()
    store = {f"a{i}": b for i, b in enumerate(ins)} | {f"o{i}": b for i, b in enumerate(outs)}
    store |= {t: np.zeros(size, to_numpy(dtype)) for t, dtype, size in temporaries}
    with np.errstate(all="ignore"):
        for program, reads, writes in steps:
            run_program(program, [store[r] for r in reads], [store[w] for w in writes], scalar_reference())
    tolerance = {"f32": 3e-4, "f64": 1e-12, "bf16": 3e-2, "f16": 4e-3}[spec.dtype]
    for got, want in zip(outs, wants, strict=True):
        g, w = torch.from_numpy(got), torch.from_numpy(want)
        if got.dtype == np.uint16:
            g, w = g.view(torch.bfloat16), w.view(torch.bfloat16)
        torch.testing.assert_close(g.double(), w.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("name", "sample"), SAMPLES[:1] + SAMPLES[-1:])
def test_saved_form(name: str, sample: Any) -> None:
    """A spec survives JSON."""
    spec, _, _ = _imported(name, sample)
    assert decode(json.loads(json.dumps(encode(spec)))) == spec


def test_work() -> None:
    """Causal attention counts the pairs that see each other; bytes are those of the operands alone."""
    st = (64 * 16, 64 * 16, 16, 1)
    spec = AttentionSpec("f32", 1, 1, 64, 64, 16, 0.25, True, st, st, st, st, (64, 64, 1))
    assert spec.pairs() == 64 * 65 // 2
    assert replace(spec, n=10).pairs() == 10 * 11 // 2 + 54 * 10
    assert replace(spec, causal=False).pairs() == 64 * 64
    assert spec.footprint() == ((4096,) * 3, (4096, 256))
    assert spec.operations() == spec.pairs() * (4 * 16 + 5) + 64 * 18


@pytest.mark.parametrize("grads", [False, True])
def test_no_score_matrix(grads: bool) -> None:
    """Scratch grows with the sequence, not with its square."""

    def scratch(length: int) -> int:
        st = (8 * length * 64, length * 64, 64, 1)
        spec = AttentionSpec("f32", 4, 8, length, length, 64, 0.125, False, st, st, st, st, (8 * length, length, 1))
        return plan(replace(spec, grads=(st,) * 4) if grads else spec, Machine(ISAS["avx512"], 8)).scratch

    assert scratch(4096) <= 2.1 * scratch(2048)


def test_plan_ignores_threads() -> None:
    """How the work is cut follows from the shape, so results cannot depend on the number of threads."""
    st = (2 * 300 * 32, 300 * 32, 32, 1)
    spec = AttentionSpec("f32", 1, 2, 300, 300, 32, 0.2, True, st, st, st, st, (600, 300, 1), grads=(st,) * 4)
    assert plan(spec, Machine(ISAS["avx2"], 1)) == plan(spec, Machine(ISAS["avx2"], 64))


SHAPES = [
    (1, 70, 64, False, "flat", "avx512"), (3, 33, 20, True, None, "avx512"), (5, 3, 16, False, "full", "avx512"),
    (17, 129, 64, False, "full", "avx512"), (49, 49, 32, False, "inf", "avx512"), (64, 197, 80, False, "flat", "avx512"),
    (100, 100, 64, True, None, "avx512"), (130, 260, 33, True, "full", "avx512"), (50, 20, 8, True, None, "avx512"),
    (49, 70, 64, True, "flat", "avx2"), (2, 40, 24, False, None, "avx2"), (33, 50, 20, False, "inf", "generic"),
]  # fmt: skip


@pytest.mark.parametrize(("m", "n", "d", "causal", "kind", "isa"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_blocks(
    m: int,
    n: int,
    d: int,
    causal: bool,
    kind: str | None,
    isa: str,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sizes around the blocks, heads inside rows, masks of one row or of all, rows that see nothing; every vector width."""
    if isa == "avx512" and host_isa().vectors != "avx512":
        pytest.skip("the processor has narrower vectors")
    monkeypatch.setenv("DCIR_ISA", isa)
    torch.manual_seed(m * n)
    q, k, v = (torch.randn(2, s, 3, d).to(dtype).transpose(1, 2) for s in (m, n, n))
    mask = None
    if kind:
        addend = torch.double if dtype == torch.double else torch.float
        mask = torch.randn(2, 1, 1 if kind == "flat" else m, n, dtype=addend).to(dtype)
        if kind == "inf":
            mask = torch.zeros(2, 1, m, n, dtype=dtype).masked_fill(mask > 0, -torch.inf)
            mask[1, 0, m // 2] = -torch.inf
        mask = mask.expand(2, 3, m, n)
    gm, tensors = graph_of(pages()[NAMES[0]].overload, (q, k, v, 0.0, causal), {"attn_mask": mask})
    out, lse = run_cpp(import_graph(gm), tensors)
    scores = q.double() @ k.double().transpose(-1, -2) / d**0.5
    scores = scores if mask is None else scores + mask.double()
    if causal:
        scores = scores.masked_fill(~torch.ones(m, n, dtype=torch.bool).tril(), -torch.inf)
    logs = torch.logsumexp(scores, -1)
    logs = torch.where(logs == -torch.inf, 0.0, logs)
    tolerance = {torch.float32: 3e-6, torch.float64: 1e-14, torch.bfloat16: 8e-3}[dtype]
    want = torch.exp(scores - logs[..., None]) @ v.double()
    torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.double(), logs, rtol=3e-6, atol=3e-6)


def test_nan_stays() -> None:
    """A NaN in one query reaches its own row and no other."""
    q, k, v = (torch.rand(1, 1, 12, 8) for _ in range(3))
    q[0, 0, 3, 0] = float("nan")
    gm, tensors = graph_of(pages()[NAMES[0]].overload, (q, k, v), {})
    rows = run_cpp(import_graph(gm), tensors)[0].isnan().any(-1).flatten()
    assert rows.tolist() == [i == 3 for i in range(12)]


@pytest.mark.parametrize("causal", [False, True])
def test_training(causal: bool) -> None:
    """A layer with packed projections trains like eager, without a call into torch."""
    torch.manual_seed(0)
    project, mix = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)

    def layer(x: torch.Tensor) -> torch.Tensor:
        q, k, v = project(x).view(2, 21, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        out: torch.Tensor = mix(y.transpose(1, 2).reshape(2, 21, 32))
        return out

    results = []
    for fn in (layer, dcir.optimize(layer, strict=True)):
        x = torch.rand(2, 21, 32, generator=torch.Generator().manual_seed(1), requires_grad=True)
        project.zero_grad()
        mix.zero_grad()
        out = fn(x)
        out.square().sum().backward()
        results.append([out, x.grad, project.weight.grad, mix.weight.grad])
    for got, want in zip(*reversed(results), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
