"""Memlets hold when they are counted: of every operator page, and after every pass; those that say something wrong are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dace.subsets import Range
from sympy import Integer
from torch.nn import functional as F

from dcir.driver.verify.check import PassChecker
from dcir.errors import InvalidGraph
from dcir.frontends.torch.importer import import_graph
from dcir.ir.interpret import interpret
from dcir.ir.network import Network
from dcir.ir.verify_memlets import counting_takes, verify_memlets
from dcir.transforms.pipelines import pipeline
from dcir.transforms.runner import run_passes
from tests.harness import all_samples, buffers_of, graph_of_calls
from tests.transforms.imported import imported
from tests.transforms.random_network import random_network

SAMPLES = list(all_samples())
NAMES = dict.fromkeys(str(p.overload) for p, _, _ in SAMPLES)


@pytest.mark.parametrize("name", NAMES)
def test_every_sample(name: str) -> None:
    """Edges say what is counted, element for element; what data decide is bounded."""
    for page, sample, _ in SAMPLES:
        if str(page.overload) == name:
            gm, tensors = graph_of_calls([(page.overload, sample.args, sample.kwargs)])
            done = import_graph(gm)
            verify_memlets(done.network, interpret(done.network, buffers_of(done, tensors)))


def rewritten(net: Network, checker: PassChecker) -> None:
    """All passes, with the memlets counted after each."""
    run_passes(net, pipeline(4), after=lambda _, net: (verify_memlets(net, interpret(net, checker.buffers)), None)[1])


def convolutions(x: Any, w: Any, g: Any, v: Any) -> torch.Tensor:
    h = F.relu(F.batch_norm(F.conv2d(x, w, None, stride=2, padding=1), None, None, g, g, training=True))
    h = F.max_pool2d(h, 3, 2, 1)
    h = torch.cat([h, F.pad(F.conv2d(h, v, padding=1), (1, 0, 0, 1))[..., :-1, :-1]], 1)
    return F.adaptive_avg_pool2d(h, 1).pow(2).sum()


def attention(x: Any, w: Any, e: Any, at: Any) -> torch.Tensor:
    q, k, v = ((F.layer_norm(x, (32,)) @ m).view(2, 16, 4, 8).transpose(1, 2) for m in w.unbind())
    a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return (x + a.transpose(1, 2).reshape(2, 16, 32) + e[at]).pow(2).mean()


STEPS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "convolutions": (
        convolutions,
        (torch.randn(2, 3, 16, 16), torch.randn(16, 3, 3, 3), torch.ones(16), torch.randn(8, 16, 3, 3)),
    ),
    "attention": (
        attention,
        (torch.randn(2, 16, 32), torch.randn(3, 32, 32), torch.randn(9, 32), torch.randint(0, 9, (2, 16))),
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_after_every_pass(name: str) -> None:
    loss, inputs = STEPS[name]
    floats = tuple(i for i, t in enumerate(inputs) if t.is_floating_point())
    net = imported(torch.func.grad(loss, argnums=floats), *inputs).network
    rewritten(net, PassChecker(net))
    assert net.bytes_moved() > 0


@pytest.mark.parametrize("seed", range(2000, 2010))
def test_random_networks(seed: int) -> None:
    net = random_network(seed, 30)
    rewritten(net, PassChecker(net, seed))


def test_a_copy_and_a_file_say_the_same(tmp_path: Any) -> None:
    loss, inputs = STEPS["convolutions"]
    net = imported(loss, *inputs).network
    texts = [str(e.data) for e in net.state.edges()]
    assert [str(e.data) for e in net.clone().state.edges()] == texts
    net.save(tmp_path / "net.zip")
    loaded = Network.load(tmp_path / "net.zip")
    assert sorted(str(e.data) for e in loaded.state.edges()) == sorted(texts)
    assert loaded.bytes_moved() == net.bytes_moved()


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_wrong_is_found(dynamic: bool) -> None:
    done = imported(lambda x: x[1:, :3] * 2, torch.randn(4, 5))
    net = done.network
    store = interpret(net, buffers_of(done, [torch.randn(4, 5)]))
    counted = verify_memlets(net, store)
    assert counted.by_edges == counted.counted == 2 * 9 * 4
    (edge,) = net.state.out_edges(net.state.source_nodes()[0])
    assert edge.data.subset == Range([(1, 3, 1), (0, 2, 1)]) and edge.data.volume == 9
    edge.data.dynamic = dynamic
    edge.data.volume = Integer(8)
    with pytest.raises(InvalidGraph, match="9 distinct elements are touched"):
        verify_memlets(net, store)
    edge.data.volume = Integer(10)
    if dynamic:
        verify_memlets(net, store)
    else:
        with pytest.raises(InvalidGraph, match="9 distinct elements"):
            verify_memlets(net, store)
    edge.data.subset = Range([(1, 3, 1), (1, 2, 1)])
    with pytest.raises(InvalidGraph, match="3 elements are touched outside of the subset"):
        verify_memlets(net, store)


def test_what_counting_takes_is_known_before() -> None:
    """Of each access the loops that it depends on; and whether its address or its mask needs data."""

    def takes(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[Any]:
        return [counting_takes(op.spec) for op in imported(function, *inputs).network.ops()]

    (product,) = takes(lambda a, b: a @ b, torch.randn(20, 30), torch.randn(30, 40))
    assert product.points == 20 * 30 + 30 * 40 + 20 * 40 and not product.of_data
    (masked,) = takes(lambda x: x.tril(), torch.randn(4, 5))
    assert not masked.of_data
    (rows,) = takes(lambda t, i: t[i], torch.randn(9, 3), torch.randint(0, 9, (4,)))
    assert rows.of_data
    (called,) = takes(torch.linalg.matrix_exp, torch.eye(3))
    assert called is None
