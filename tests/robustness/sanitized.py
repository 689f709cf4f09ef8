"""What runs under sanitizers: ``python -m tests.robustness.sanitized operators [START STEP] | networks | kernels | moving | …``.

To be started with `dcir.codegen.cpp.toolchain.sanitizer_environment`, or by `tests.robustness.team`. ``operators 0 1`` runs every sample of
every page, which takes half an hour.
"""

from __future__ import annotations

import copy
import ctypes
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch
from torch import nn

import dcir
from dcir.cache import Cache
from dcir.codegen.compile import compile_network
from dcir.codegen.cpp.emitters import plan
from dcir.codegen.cpp.toolchain import Toolchain, Unit, compile_objects, default_flags, link_shared
from dcir.codegen.registry import Emitters
from dcir.cost.machine import Machine
from dcir.driver.assemble import assemble
from dcir.frontends.torch.importer import Imported, import_graph
from dcir.ir.network import Network, Operand, Result
from dcir.ir.sizes import Bounds
from dcir.isa import host_isa
from dcir.ops.library.segments import GroupSpec
from tests.driver.test_moving_backward import Pairs, Sentences, sentences, sets
from tests.driver.test_moving_image_training import NETS as TRAINED
from tests.driver.test_moving_images import NETS, SIZES
from tests.driver.test_moving_images import images as images_of
from tests.driver.test_moving_program import check, programs
from tests.driver.test_moving_training import gradients
from tests.harness import all_samples, check_close, check_results, expected, graph_of_calls, run_cpp
from tests.moving import Moving
from tests.on_host import on_host
from tests.robustness.kernel_cases import CASES, THREADS

_GROUP = 24
# Families whose kernels compute addresses of their own; of the others, a few samples stand for all.
_DENSE = ("matmul", "conv_pages", "attention_pages", "max_pooling", "average_pooling", "scatters", "gathers", "sort")


def operators(start: int, step: int) -> int:
    """Every ``step``-th sample from ``start`` on, against eager torch; returns how many."""
    return _check(range(len(all_samples()))[start::step])


def families(each: int) -> int:
    """A few samples of each file of pages, spread over it, and more of those with address arithmetic."""
    by_file: dict[str, list[int]] = {}
    for number, (page, _, _) in enumerate(all_samples()):
        by_file.setdefault(page.lower.__module__.rpartition(".")[2], []).append(number)
    chosen = []
    for name, numbers in sorted(by_file.items()):
        wanted = each * 3 if name in _DENSE else each
        chosen += numbers[:: max(1, len(numbers) // wanted)][:wanted]
    return _check(chosen)


def _check(numbers: Sequence[int]) -> int:
    every = all_samples()
    for first in range(0, len(numbers), _GROUP):
        group = [every[n] for n in numbers[first : first + _GROUP]]
        print(", ".join(f"{p.name}/{s.name}" for p, s, _ in group), file=sys.stderr, flush=True)
        gm, tensors = graph_of_calls([(p.overload, s.args, s.kwargs) for p, s, _ in group])
        flat = iter(run_cpp(import_graph(gm), [_alone(t) for t in tensors]))
        for page, sample, _ in group:
            check_results(page, sample, [next(flat) for _ in expected(page, sample)[0]])
    return len(numbers)


class Graph(nn.Module):
    """Means of messages along edges, most of which end at one node: lists of points and folds, shared out by columns too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.edges = torch.randint(0, 300, (2, 1500))
        self.edges[1, :1000] = 17
        self.own, self.near = nn.Linear(40, 40), nn.Linear(40, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        source, target = self.edges
        count = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target)))
        total = torch.zeros_like(x).index_add(0, target, x[source].tanh())
        out: torch.Tensor = self.own(x) + self.near(total / count.clamp(min=1)[:, None])
        return out


def networks() -> int:
    """A small CNN, a small transformer and a small graph network, forward and backward, in training and in evaluation."""
    torch.manual_seed(0)
    cnn = nn.Sequential(
        nn.Conv2d(3, 18, 3, padding=1), nn.BatchNorm2d(18), nn.ReLU(), nn.Conv2d(18, 18, 3, stride=2, groups=18), nn.GELU(),
        nn.Conv2d(18, 7, 1), nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.LazyLinear(10),
    )  # fmt: skip
    cnn(torch.randn(2, 3, 13, 13))
    block = nn.TransformerEncoderLayer(24, 3, 37, dropout=0.0, activation="gelu", batch_first=True)
    for net, x in ((cnn, torch.randn(2, 3, 13, 13)), (block, torch.randn(2, 19, 24)), (Graph(), torch.randn(300, 40))):
        fast = dcir.optimize(net)
        for grad in (True, False):
            fast.train(grad), net.train(grad)
            with torch.set_grad_enabled(grad):
                got, want = fast(x), net(x)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
            if grad:
                got.square().sum().backward()
    return 3


def kernels() -> int:
    """Kernels that take addresses from data or divide sums among jobs, on as many threads as there are shares."""
    torch.set_num_threads(THREADS)
    for name, case in CASES.items():
        print(name, file=sys.stderr, flush=True)
        case.check(name)
    return len(CASES)


def moving() -> int:
    """Training steps for all sizes: at both ends of the bounds, and where tiles, vectors and blocks have rests."""
    torch.manual_seed(0)
    sizes, bounds = ((3, 37), (2, 2), (9, 17), (2, 149)), (Bounds(2, 40), Bounds(2, 149))
    for net, inputs in ((Sentences(24, 3, 1), sentences), (Pairs(), sets)):
        compiled = Moving(net, bounds, generated=True)
        for size in sizes:
            args = inputs(*size)
            got = compiled(*map(_alone, args), dims=[(i, d) for i in range(len(args)) for d in (0, 1)])
            torch.testing.assert_close(got, net(*args), rtol=1e-4, atol=1e-4)
            got.backward()
    return 2


def images() -> int:
    """Programs for images of any size, at sizes that end in every smaller tile."""
    for name, make in NETS.items():
        torch.manual_seed(0)
        net = make().eval()
        fast = dcir.optimize(net, threads=THREADS)
        for size in (*SIZES[:4], *((2, 18, 2 * width) for width in range(10, 26, 3))):
            print(name, size, file=sys.stderr, flush=True)
            check(fast, net, images_of(name, *size))
        assert programs(fast)[0], name
    return len(NETS)


def image_training() -> int:
    """Training on images of any size, in planes and in channels-last: tiny ones, and rows that end in every smaller tile."""
    sizes = ((2, 24, 30), (3, 17, 41), (2, 9, 26), (4, 32, 19), (2, 40, 57), (2, 18, 10))
    for name, (make, shape) in TRAINED.items():
        for form in (torch.contiguous_format, torch.channels_last)[: 1 + (name in ("residual", "separable"))]:
            torch.manual_seed(0)
            net = make().train().to(memory_format=form)
            fast, wide = dcir.optimize(net, dynamic=True, threads=THREADS), copy.deepcopy(net).double()
            for size in sizes:
                print(name, form, size, file=sys.stderr, flush=True)
                image = torch.randn(shape(*size)).contiguous(memory_format=form)
                twin = copy.deepcopy(net)
                ways = ((net, fast, image), (twin, twin, image), (wide, wide, image.double()))
                # All in one: what the sums of each are worth is another test's matter, and another compiler's.
                check_close(*(torch.cat([t.flatten() for t in gradients(n, run, [x])]) for n, run, x in ways))
            assert programs(fast)[0], name
    return len(TRAINED)


def raced() -> int:
    """A list of points whose blocks count in one place; the sanitizer says so when the process ends."""
    torch.set_num_threads(THREADS)
    spec = GroupSpec((1 << 14,), ((1,),), ("i64",), (301,), False)
    good = plan(spec, Machine(host_isa(), THREADS))
    counting = good.phases[0]
    phases = (replace(counting, code=counting.code.replace("j * 301", "0 * 301")), *good.phases[1:])
    net = Network()
    index = Operand(net.add_container((1 << 14,), "i64", "input"))
    outs = [Operand(net.add_container((n,), "i32")) for n in (302, 1 << 14)]
    net.add_op(spec, [index], outs)
    net.promote(outs[0].data)
    net.results.append(Result(outs[0].data, (302,), (1,), 0, "i32"))
    with mock.patch.object(Emitters, "plan", lambda *_: replace(good, phases=phases)):
        library = compile_network(on_host(net, THREADS), cache=Cache(Path(tempfile.mkdtemp())))
    assemble(Imported(net, {}, [("result", 0)]), library)([torch.arange(1 << 14) % 301])
    return 1


def broken() -> int:
    """A kernel that reads behind its operand; the sanitizer ends the process."""
    text = 'extern "C" __attribute__((visibility("default"))) float f(float* x, int n) { return x[n]; }'
    cache = Cache.default()
    tools = Toolchain.find(cache)
    path = link_shared(compile_objects([Unit("", text)], tools, default_flags(host_isa()), cache), "", tools, cache)
    x = torch.ones(12)
    ctypes.CDLL(str(path)).f(ctypes.c_void_p(x.data_ptr()), 12)
    return 1


def _alone(t: torch.Tensor) -> torch.Tensor:
    """The same tensor in a storage that ends where the tensor does."""
    if t.numel() == 0:
        return t
    extent = 1 + sum((d - 1) * s for d, s in zip(t.shape, t.stride(), strict=True))
    storage = torch.as_strided(t.detach(), (extent,), (1,)).clone()
    return torch.as_strided(storage, t.shape, t.stride())


if __name__ == "__main__":
    what, *numbers = sys.argv[1:]
    functions = (operators, families, networks, kernels, moving, images, image_training, raced, broken)
    function = next(f for f in functions if f.__name__ == what)
    print("done", function(*map(int, numbers)))  # type: ignore[operator]
