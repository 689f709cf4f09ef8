"""One walk over a network's operators: as kernels are made for them, in streams image by image."""

import torch

from dcir.codegen.invocations import invocations
from dcir.transforms.pipelines import pipeline
from tests.on_host import target
from tests.transforms.build import binary, network, unary
from tests.transforms.imported import imported


def test_every_operator_in_order():
    net = network([(4, 6), (4, 6)], lambda c, x, y: [unary(c, "exp", binary(c, "add", x, y))])
    rows = list(invocations(net, 3))
    assert [r.label for r in rows] == [op.label for op in net.ops()] and [r.number for r in rows] == [0, 1]
    for r, op in zip(rows, net.ops(), strict=True):
        assert r.spec is op.spec and (r.ins, r.outs) == (net.ins(op), net.outs(op))
        assert (r.stream, r.team) == (-1, 3) and not r.calls_torch
    assert [r.types for r in rows] == [(("f32", "f32"), ("f32",)), (("f32",), ("f32",))]


def test_calls_into_torch_are_told_apart():
    net = imported(lambda x: torch.bernoulli(x) + 1, torch.rand(4)).network
    assert [r.calls_torch for r in invocations(net, 1)].count(True) == 1


def test_a_stream_has_one_image_and_one_thread():
    def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.relu(torch.nn.functional.conv2d(x, w, padding=1))
        return x

    net = imported(chain, torch.randn(4, 8, 20, 20), torch.randn(8, 8, 3, 3)).network
    net.target = target(near_bytes=0, far_bytes=0)
    for p in pipeline(4):
        p.apply(net)
    rows = list(invocations(net, 2))
    assert {r.stream for r in rows if r.team == 1} == set(range(len(net.streams)))
    for r, op in zip(rows, net.ops(), strict=True):
        inside = r.stream >= 0
        assert inside == any(op.label in s.ops for s in net.streams) and (r.team == 1) == inside
        assert (r.spec.operations() < op.spec.operations()) == inside or not op.spec.operations()
