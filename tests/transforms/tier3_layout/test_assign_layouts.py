"""Layouts around convolutions: what is laid out anew, what stays and why, and the numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dcir
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand
from dcir.ir.statements import Load, Store
from dcir.isa import host_isa
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.epilogue import first_store
from dcir.ops.library.packing import panel_width
from dcir.ops.library.scatter import ScatterSpec
from dcir.transforms.pipelines import pipeline
from dcir.transforms.runner import run_passes
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier2_fusion.fuse_siblings import FuseSiblings
from dcir.transforms.tier3_layout.assign_layouts import AssignLayouts
from dcir.transforms.tier3_layout.sink_copies import SinkCopies
from tests.harness import check_close, double, run_cpp, run_interpreted
from tests.transforms.imported import imported, same_numbers

Fn = Callable[..., Any]
CL = torch.channels_last


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def layout(net: Network, data: str) -> str:
    """ "last", if channels (dimension 1) are innermost, else "first"."""
    c = net.containers[data]
    return "last" if c.strides[1] == 1 and c.shape[1] > 1 and max(c.shape[2:]) > 1 else "first"


def images(net: Network) -> list[str]:
    """The layouts of all transient images, by order of their making."""
    found = {}
    for op in net.ops():
        for o in net.outs(op):
            c = net.containers[o.data]
            if c.role == "transient" and len(c.shape) >= 3 and max(c.shape[2:]) > 1:
                found[o.data] = layout(net, o.data)
    return list(found.values())


def pixels_up(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> Any:
    return F.conv2d(F.pixel_shuffle(F.conv2d(x, v, padding=1).relu(), 2), w, padding=1).relu()


def squeezed(x: torch.Tensor, v: torch.Tensor, d: torch.Tensor, u: torch.Tensor, w: torch.Tensor) -> Any:
    """Squeeze and excite."""
    y = F.silu(F.conv2d(x, v, padding=1))
    s = torch.sigmoid(F.conv2d(F.relu(F.conv2d(y.mean((2, 3), keepdim=True), d)), u))
    return F.conv2d(y * s, w, padding=1).exp()


def dense(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> Any:
    """A dense block: every convolution reads all that came before."""
    a = F.conv2d(x, v, padding=1).relu()
    b = F.conv2d(a, w, padding=1).relu()
    c = torch.cat([a, b], 1)
    d = torch.cat([c, F.conv2d(c, u, padding=1)], 1)
    return F.conv2d(d[:, 3:-2], u, padding=1).sin()


def shuffled(x: torch.Tensor, u: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> Any:
    """Channel shuffle between grouped convolutions."""
    y = F.conv2d(F.conv2d(x, u).exp(), v, padding=1, groups=2).relu()
    n, c, h, k = y.shape
    y = y.view(n, 2, c // 2, h, k).transpose(1, 2).reshape(n, c, h, k)
    return F.conv2d(y, w, padding=1, groups=3).relu().mean((2, 3))


def waves(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> Any:
    """Gated dilated convolutions over time, as in WaveNet."""
    x = x.exp()
    y = F.conv1d(F.pad(x, (2, 0)), v, dilation=2)
    a, b = y.chunk(2, 1)
    z = torch.tanh(a) * torch.sigmoid(b)
    return F.conv1d(F.pad(x + F.conv1d(z, w), (4, 0)), u, dilation=4).relu().sum(2)


def yolo(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> Any:
    """A pyramid: pools of several sizes, upsampling, a join."""
    a = F.leaky_relu(F.conv2d(x, v, padding=1))
    b = F.conv2d(a, w, stride=2, padding=1)
    b = torch.cat([b, F.max_pool2d(b, 3, 1, 1), F.max_pool2d(b, 5, 1, 2), F.avg_pool2d(b, 3, 1, 1)], 1)
    b = F.interpolate(b, scale_factor=2.0, mode="nearest")
    return F.conv2d(torch.cat([a, b], 1), u, padding=1).relu()


def residual(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> Any:
    def block(y: torch.Tensor) -> torch.Tensor:
        z = F.batch_norm(F.conv2d(y, v, padding=1), b, g.abs() + 1, g, b).relu()
        return (y + F.conv2d(z, w, padding=1)).relu()

    return F.conv2d(block(block(x)), v, stride=2).tanh()


def volumes(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> Any:
    y = F.conv3d(x, v, padding=1).relu()
    return F.conv3d(F.max_pool3d(y, 2), w, padding=1).relu()


def halves(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> Any:
    """Transposed convolutions, bilinear resizing, group norm."""
    y = F.conv_transpose2d(F.conv2d(x, v, padding=1).relu(), w, stride=2)
    y = F.interpolate(F.group_norm(y, 4), size=(9, 7), mode="bilinear")
    return F.conv2d(y, v[:, :16], padding=1).relu()


def doubled(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> Any:
    """Another type between convolutions."""
    return F.conv2d(F.conv2d(x.double(), v.double(), padding=1).float().relu(), w, padding=1).exp()


# The last column: channels last or first, for all images between operators. The shuffled one has its channels in two dimensions.
NETS: dict[str, tuple[Fn, list[tuple[int, ...]], str]] = {
    "residual": (residual, [(1, 17, 8, 9), (17, 17, 3, 3), (17, 17, 3, 3), (17,), (17,)], "LLLLLLLLF"),
    "residual, a batch": (residual, [(3, 16, 6, 7), (16, 16, 3, 3), (16, 16, 3, 3), (16,), (16,)], "LLLLLLLLF"),
    "squeezed": (squeezed, [(2, 3, 8, 9), (33, 3, 3, 3), (5, 33, 1, 1), (33, 5, 1, 1), (20, 33, 3, 3)], "LLLF"),
    "dense": (dense, [(2, 19, 6, 7), (17, 19, 3, 3), (16, 17, 3, 3), (5, 33, 3, 3)], "LLLLLLF"),
    "pixels": (pixels_up, [(2, 16, 5, 6), (68, 16, 3, 3), (19, 17, 3, 3)], "LLF"),
    "shuffled": (shuffled, [(2, 3, 5, 6), (16, 3, 1, 1), (36, 8, 3, 3), (54, 12, 3, 3)], "LLLFL"),
    "waves": (waves, [(2, 20, 31), (40, 20, 2), (20, 20, 1), (20, 20, 2)], "LLLLLLL"),
    "yolo": (yolo, [(2, 3, 12, 10), (18, 3, 3, 3), (20, 18, 3, 3), (17, 98, 3, 3)], "LLLLLLLF"),
    "volumes": (volumes, [(2, 3, 6, 5, 7), (18, 3, 3, 3, 3), (19, 18, 3, 3, 3)], "LLLLF"),
    "halves": (halves, [(2, 24, 5, 6), (24, 24, 3, 3), (24, 16, 3, 3)], "LLLLLF"),
    "doubled": (doubled, [(1, 3, 5, 6), (17, 3, 3, 3), (18, 17, 3, 3)], "FFLLF"),
}


@pytest.mark.parametrize("name", NETS)
def test_numbers(name: str) -> None:
    fn, shapes, layouts = NETS[name]
    inputs = [rand(*s) / (len(s) if len(s) > 1 else 1) for s in shapes]
    outcome = same_numbers(fn, *inputs, passes=(AssignLayouts(), SinkCopies()))[0]
    assert outcome.changed
    outcome = same_numbers(fn, *inputs, passes=(FuseProducers(), FuseSiblings(), AssignLayouts(), SinkCopies()))[2]
    assert outcome.changed and not outcome.refused
    passes = (FuseProducers(), FuseEpilogues(), FuseSiblings(), AssignLayouts(), SinkCopies())
    outcome = same_numbers(fn, *inputs, passes=passes)[3]
    assert outcome.changed and not outcome.refused
    done = imported(fn, *inputs)
    for p in (FuseProducers(), FuseSiblings(), AssignLayouts()):
        p.apply(done.network)
    assert "".join(v[0].upper() for v in images(done.network)) == layouts
    assert not AssignLayouts().apply(done.network).changed


@pytest.mark.parametrize("name", NETS)
def test_code(name: str) -> None:
    fn, shapes, _ = NETS[name]
    inputs = [rand(*s) / (len(s) if len(s) > 1 else 1) for s in shapes]
    done = imported(fn, *inputs)
    for p in (FuseProducers(), AssignLayouts(), SinkCopies()):
        p.apply(done.network)
    want = fn(*inputs)
    (got,) = run_cpp(done, inputs)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_inputs_with_channels_last_stay_so() -> None:
    shapes = NETS["residual, a batch"][1]
    inputs = [rand(*s) / 4 if len(s) == 4 else rand(*s) for s in shapes]
    inputs[0] = inputs[0].contiguous(memory_format=CL)
    same_numbers(residual, *inputs, passes=(FuseProducers(), AssignLayouts()))
    done = imported(residual, *inputs)
    FuseProducers().apply(done.network)
    before = len(done.network.ops())
    AssignLayouts().apply(done.network)
    assert len(done.network.ops()) == before and set(images(done.network)) == {"last"}


def test_an_image_read_often_is_copied() -> None:
    def fan(x: torch.Tensor, v: torch.Tensor) -> Any:
        y = torch.cat([F.conv2d(x, v, padding=1), F.conv2d(x, v * 2, padding=1), F.conv2d(x, v + 1, padding=1)], 1)
        return y.mean((2, 3))

    inputs = [rand(2, 32, 9, 8), rand(32, 32, 3, 3) / 9]
    same_numbers(fan, *inputs, passes=(AssignLayouts(),))
    done = imported(fan, *inputs)
    net = done.network
    AssignLayouts().apply(net)
    (made,) = (op for op in net.ops() if op.made_by == "assign-layouts" and net.ins(op)[0].data == net.inputs[0])
    assert len(net.readers(net.inputs[0])) == 1 and len(net.readers(net.outs(made)[0].data)) == 3


def test_a_photograph_is_read_as_it_is() -> None:
    inputs = [rand(1, 3, 16, 16), rand(32, 3, 3, 3), rand(32, 32, 3, 3)]
    done = imported(lambda x, v, w: F.conv2d(F.conv2d(x, v).relu(), w).relu().mean((2, 3)), *inputs)
    AssignLayouts().apply(done.network)
    assert [op.spec.kind for op in done.network.ops()][:3] == ["forward", "program", "forward"]
    assert done.network.ops()[0].spec.x[1:] == (256, 16, 1)
    assert set(images(done.network)) == {"last"}


def test_what_only_a_reduction_reads() -> None:
    """The last convolution's result, with its epilogue: no other convolution says which of its dimensions are channels."""
    inputs = [rand(2, 32, 9, 8), rand(48, 32, 1, 1), rand(64, 48, 1, 1), rand(64)]
    done = imported(lambda x, v, w, b: F.conv2d(F.conv2d(x, v).relu(), w, b).relu().mean((2, 3)), *inputs)
    for p in (FuseEpilogues(), AssignLayouts()):
        p.apply(done.network)
    assert [op.spec.y[1] for op in done.network.ops() if isinstance(op.spec, ConvolutionSpec)] == [1, 1]
    check_close(run_interpreted(done, inputs)[0], *(
        F.conv2d(F.conv2d(x, v).relu(), w, b).relu().mean((2, 3)) for x, v, w, b in (inputs, [double(t) for t in inputs])
    ))  # fmt: skip


def test_rows_that_share_a_cache_set_are_padded() -> None:
    def net(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> Any:
        return F.conv2d(F.conv2d(x, v).relu(), w).mean((2, 3))

    inputs = [rand(2, 16, 3, 4), rand(1024, 16, 1, 1), rand(17, 1024, 1, 1) / 9]
    same_numbers(net, *inputs, passes=(AssignLayouts(), SinkCopies()))
    done = imported(net, *inputs)
    AssignLayouts().apply(done.network)
    wide = [c for c in done.network.containers.values() if c.shape == (2, 1024, 3, 4)]
    # What a convolution reads is padded, what a pointwise operator reads is not.
    assert sorted(c.strides for c in wide) == [(12288, 1, 4096, 1024), (12480, 1, 4160, 1040)]
    (got,) = run_cpp(done, inputs)
    torch.testing.assert_close(got, net(*inputs), rtol=1e-4, atol=1e-4)


def flattened(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> Any:
    return F.max_pool2d(F.conv2d(x, v, padding=1).relu(), 2).flatten(1) @ w


def solved(x: torch.Tensor, v: torch.Tensor) -> Any:
    return torch.linalg.inv_ex(F.conv2d(x, v, padding=1))[0]


REFUSED: dict[str, tuple[Fn, list[tuple[int, ...]], str]] = {
    "flattened": (
        flattened,
        [(2, 3, 8, 6), (20, 3, 3, 3), (240, 5)],
        "a dimension runs over several dimensions of the copy",
    ),
    "read by torch": (solved, [(2, 3, 8, 8), (20, 3, 3, 3)], "calls into torch keep the layout of their operands"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    fn, shapes, reason = REFUSED[name]
    inputs = [rand(*s) for s in shapes]
    net = imported(fn, *inputs).network
    assert reason in AssignLayouts().apply(net).refused
    same_numbers(fn, *inputs, passes=(AssignLayouts(),))


UNCHANGED: dict[str, tuple[Fn, list[tuple[int, ...]]]] = {
    "no convolution": (lambda x: F.max_pool2d(x.exp(), 2).sin(), [(2, 16, 8, 8)]),
    "one convolution between first": (lambda x, w: F.conv2d(x.exp(), w).sin(), [(2, 16, 8, 8), (16, 16, 3, 3)]),
    "an island": (
        lambda x, w: (F.conv2d(x, w, padding=1).sin() + x) * x.exp(),
        [(2, 16, 8, 8), (16, 16, 3, 3)],
    ),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_unchanged(name: str) -> None:
    fn, shapes = UNCHANGED[name]
    net = imported(fn, *(rand(*s) for s in shapes)).network
    FuseProducers().apply(net)
    outcome = AssignLayouts().apply(net)
    assert not outcome.changed and not outcome.refused


def test_results_that_only_the_backward_reads_may_move() -> None:
    def net(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> Any:
        y = F.conv2d(x, v, padding=1).relu()
        return F.conv2d(y, w, padding=1).relu().mean((2, 3)), y[:, 2:]

    inputs = [rand(2, 3, 6, 5), rand(20, 3, 3, 3), rand(18, 20, 3, 3)]
    done = imported(net, *inputs)
    before = run_interpreted(done, inputs)
    AssignLayouts().apply(done.network)
    assert done.network.results[1].strides == (600, 30, 5, 1)
    done = imported(net, *inputs)
    done.network.free.add(1)
    AssignLayouts().apply(done.network)
    assert done.network.results[1].strides == (600, 1, 100, 20) and done.network.results[1].offset == 2
    for got, want in zip(run_interpreted(done, inputs), before, strict=True):
        check_close(got, want, want)


def test_epilogues_and_packed_weights() -> None:
    """A product's epilogue follows its stores; packed weights stay."""
    inputs = [rand(2, 20, 6, 5), rand(18, 20, 3, 3), rand(17, 18, 3, 3), rand(17, 17, 1, 1)]

    def net(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> Any:
        y = F.conv2d(F.conv2d(x, v, padding=1), w, padding=1)
        return F.conv2d(y, u).mean((2, 3))

    done = imported(net, *inputs)
    graph = done.network
    first, second, *_ = graph.ops()
    (x, w), (t,) = graph.ins(second), graph.outs(second)
    spec = second.spec
    shape = spec.shapes[2]
    body = LoopNestBuilder(shape)
    value = body.load(body.input("f32"), (shape[1] * 30, 30, 5, 1))
    other = body.load(body.input("f32"), (18 * 30, 30, 5, 1))
    body.store(body.output("f32"), spec.y, body.op("max", value, other))
    graph.rewire(second, ConvolutionSpec(**{**vars(spec), "epilogue": body.finish()}), [x, w, Operand(x.data, 30)], [t])
    before = run_interpreted(done, inputs)
    outcome = AssignLayouts().apply(graph)
    assert outcome.changed and not outcome.refused
    spec, (a, _, b) = second.spec, graph.ins(second)
    assert a.data == b.data and b.offset == 1 and spec.x[1] == 1 and spec.y[1] == 1
    assert first_store(spec.epilogue).strides == spec.y
    for got, want in zip(run_interpreted(done, inputs), before, strict=True):
        check_close(got, want, want)
    assert panel_width("f32", host_isa()) and first.spec.y[1] == 1


def test_kernels_of_equal_layers_stay_equal() -> None:
    inputs = [rand(1, 16, 8, 8), rand(16, 16, 3, 3)]

    def deep(x: torch.Tensor, v: torch.Tensor) -> Any:
        for _ in range(6):
            x = F.conv2d(x, v, padding=1).relu()
        return x.mean((2, 3))

    net = imported(deep, *inputs).network
    AssignLayouts().apply(net)
    specs = [op.spec for op in net.ops()]
    assert len(set(specs[2:11])) == 2
    for op in net.ops():  # loops in the order of memory: the last one runs along channels
        if isinstance(op.spec, LoopNest) and not op.spec.inner:
            assert all(s.strides[-1] == 1 for s in op.spec.body if isinstance(s, (Load, Store)))


def test_a_network_of_many_operators() -> None:
    """Two hundred convolutions with residuals between: all move."""
    inputs = [rand(1, 16, 8, 8), rand(16, 16, 3, 3)]

    def deep(x: torch.Tensor, v: torch.Tensor) -> Any:
        old = x
        for i in range(200):
            x = F.conv2d(x, v, padding=1).relu()
            if i % 3 == 0:
                x = old = x + old
        return x.mean((2, 3))

    assert AssignLayouts().apply(imported(deep, *inputs).network).changed > 400


class Block(nn.Module):
    """An inverted residual with squeeze and excite."""

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        self.up = nn.Sequential(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU())
        self.across = nn.Sequential(
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.SiLU()
        )
        self.squeeze, self.excite = nn.Conv2d(wide, 5, 1), nn.Conv2d(5, wide, 1)
        self.down = nn.Sequential(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.across(self.up(x))
        s = torch.sigmoid(self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        out: torch.Tensor = x + self.down(y * s)
        return out


class Small(nn.Module):
    """A small classifier with all kinds of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 17, 3, 2, 1), nn.BatchNorm2d(17), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(Block(17, 35), Block(17, 40))
        self.grow = nn.Conv2d(34, 31, 3, padding=1)
        self.head = nn.Linear(31 * 4 + 31, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        y = F.relu(self.grow(torch.cat([y, self.blocks(y)], 1)))
        out: torch.Tensor = self.head(torch.cat([F.adaptive_avg_pool2d(y, 2).flatten(1), y.amax((2, 3))], 1))
        return out


@pytest.mark.parametrize(("batch", "form"), [(1, torch.contiguous_format), (3, CL)])
def test_whole_networks(batch: int, form: torch.memory_format) -> None:
    torch.manual_seed(0)
    model = Small().eval()
    for p in model.parameters():
        p.data = p.data.contiguous(memory_format=form) if p.dim() == 4 else p.data
    x = rand(batch, 3, 37, 41).contiguous(memory_format=form)
    with torch.no_grad():
        want, exact = model(x), copy.deepcopy(model).double()(double(x))
        got = dcir.optimize(model, pipeline=pipeline(4))(x)
    check_close(got, want, exact, what="inference")


@pytest.mark.parametrize("filled", [True, False])
def test_scatters_follow(filled: bool) -> None:
    """What is added to pixels of images, as by the gradient of a resized one, has channels last where its neighbours do."""
    rows, columns = torch.tensor([0, 3, 3, -1, 2, 5])[:, None], torch.tensor([1, 0, 6, 6, -2, 2, 1])

    def scattered(
        x: torch.Tensor, v: torch.Tensor, w: torch.Tensor, i: torch.Tensor, j: torch.Tensor, *base: torch.Tensor
    ) -> torch.Tensor:
        y = F.conv2d(x, v, padding=1)
        z = base[0].relu() if base else torch.zeros(2, 18, 6, 7, dtype=x.dtype)
        z = torch.ops.aten.index_put(z, [None, None, i, j], y, True)
        return F.conv2d(z, w, padding=1)

    inputs = [
        rand(2, 3, 6, 7),
        rand(18, 3, 3, 3),
        rand(19, 18, 3, 3),
        rows,
        columns,
        *([] if filled else [rand(2, 18, 6, 7)]),
    ]
    same_numbers(scattered, *inputs, passes=(AssignLayouts(),))
    net = imported(scattered, *inputs).network
    assert AssignLayouts().apply(net).changed
    (spec,) = (op.spec for op in net.ops() if isinstance(op.spec, ScatterSpec))
    assert spec.source[1] == spec.to[1] == spec.out[1] == 1


def test_numbers_of_gradients() -> None:
    def loss(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(F.conv2d(x, v, padding=1).relu(), 2)
        return F.conv2d(torch.cat([y, y.sin()], 1), w).square().mean()

    inputs = [rand(2, 3, 8, 9), rand(18, 3, 3, 3), rand(19, 36, 3, 3) / 9]
    grad = torch.func.grad(loss, argnums=(0, 1, 2))
    outcome = same_numbers(grad, *inputs, passes=(FuseProducers(), AssignLayouts()))[1]
    assert outcome.changed


def test_runs_verified() -> None:
    done = imported(NETS["yolo"][0], *(rand(*s) for s in NETS["yolo"][1]))
    records = run_passes(done.network, pipeline(4), validate_each=True)
    assert next(r for r in records if r.name == "assign-layouts").changed
