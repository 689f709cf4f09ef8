"""How calls run on the device: replays of recorded calls, captures of the user's, profiles, caches in place, autocast, bad indices."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gpu.cases import Case, compiled, device_milliseconds, milliseconds, work
from tests.gpu.networks import ratio


class Small(nn.Module):
    """Many short kernels: convolutions, norms, a softmax, an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU()) for _ in range(6)))
        self.conv, self.norm = nn.Conv1d(32, 32, 3, padding=1), nn.BatchNorm1d(32)
        self.out = nn.Linear(32, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.body(self.words(tokens))
        return self.out(self.norm(self.conv(x.transpose(1, 2))).relu().mean(2)).softmax(-1)


class DecodeStep(nn.Module):
    """Attention of one position over a cache and itself, written out."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, new_k: Tensor, new_v: Tensor) -> Tensor:
        keys, values = torch.cat([k, new_k], 2), torch.cat([v, new_v], 2)
        return torch.softmax(q @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ values


def _tokens(seed: int, device: str, highest: int = 50) -> Tensor:
    return torch.randint(0, highest, (4, 24), generator=torch.Generator().manual_seed(seed)).to(device)


def _made(device: str, *, train: bool) -> tuple[nn.Module, nn.Module, nn.Module]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Small().to(device).train(train)
    return model, copy.deepcopy(model), copy.deepcopy(model).double()


def _agree(ours: list[Tensor], eager: list[Tensor], exact: list[Tensor]) -> float:
    worst = ratio(ours, eager, exact)
    assert worst <= 1, f"errors {worst:.3g} times what is allowed"
    return worst


def replayed(device: str) -> dict[str, Any]:
    """``cuda_graphs``: inference with other arguments in every call, whose results stay."""
    import dcir

    model, plain, exact = _made(device, train=False)
    fast, without = (dcir.optimize(model, target="cuda", cuda_graphs=on) for on in (True, False))
    with torch.no_grad():
        inputs = [_tokens(i, device) for i in range(6)]
        ours = [fast(x) for x in inputs]
        worst = _agree(ours, [plain(x) for x in inputs], [exact(x) for x in inputs])
        (program,) = fast.dcir.session.programs
        assert program.replays.captures == 1, program.replays.why_not()
        figures: dict[str, Any] = {"of allowed": worst}
        if device == "cuda":
            figures["replay us"] = milliseconds(lambda: fast(inputs[0])) * 1e3
            figures["without us"] = milliseconds(lambda: without(inputs[0])) * 1e3
    return figures


def replayed_training(device: str) -> dict[str, Any]:
    """``cuda_graphs``: gradients and running statistics of five steps."""
    import dcir

    model, plain, exact = _made(device, train=True)
    fast = dcir.optimize(model, target="cuda", cuda_graphs=True)
    worst = 0.0
    for i in range(5):
        x, target = _tokens(i, device), torch.arange(4, device=device)
        for m in (fast, plain, exact):
            m.zero_grad(set_to_none=True)
            F.nll_loss(m(x).log(), target).backward()
        grads = [[p.grad for p in m.parameters()] for m in (model, plain, exact)]
        worst = max(worst, _agree(*grads))
    torch.testing.assert_close(model.norm.running_mean, plain.norm.running_mean, rtol=1e-4, atol=1e-5)
    programs = list(fast.dcir.session.programs)
    refused = {p.replays.why_not() for p in programs} - {""}
    assert not refused, refused
    return {"of allowed": worst, "captures": sum(p.replays.captures for p in programs)}


def captured_by_user(device: str) -> dict[str, Any]:
    """A compiled module inside of ``torch.cuda.graph``, after a call that gets it ready."""
    model, plain, exact = _made(device, train=False)
    fast, _ = compiled(model, device)
    x = _tokens(0, device)
    with torch.no_grad():
        fast(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = fast(x)
        worst = 0.0
        for i in range(3):
            x.copy_(_tokens(i, device))
            graph.replay()
            worst = max(worst, _agree([y], [plain(x)], [exact(x)]))
        fast(x)  # and as before
    return {"of allowed": worst, "replay us": milliseconds(graph.replay) * 1e3}


def profiled(device: str) -> dict[str, Any]:
    """Times of the kernels by events: together less than the call, none without."""
    import dcir

    model, *_ = _made(device, train=False)
    fast = dcir.optimize(model, target="cuda")
    x = _tokens(0, device)
    with torch.no_grad():
        fast(x)
        found = fast.dcir.profile(x, seconds=0.3)
    assert found.steps and all(s.ms > 0 for s in found.steps) and found.device
    assert 0 < found.kernel_ms <= found.wall_ms
    return {"kernels ms": found.kernel_ms, "call ms": found.wall_ms, "steps": len(found.steps)}


def decoded(dtype: torch.dtype, device: str, positions: int = 2047) -> dict[str, Any]:
    """A step of a decoder, whose cache is read where it lies; half types with partial sums in float32."""
    torch._dynamo.reset()
    made = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made).to(device, dtype)

    inputs = [rand(8, 4, 3, 64), *(rand(8, 4, positions, 64) for _ in range(2)), *(rand(8, 4, 1, 64) for _ in range(2))]
    step = DecodeStep()
    fast, records = compiled(step, device)
    with torch.no_grad():
        for _ in range(2):
            ours = fast(*inputs)
        worst = _agree([ours], [step(*inputs)], [step(*(t.double() for t in inputs))])
        (graph,) = records()
        changed = {p.name: p.changed for p in graph.passes}
        assert changed["read-joined-in-place"] == 2, changed
        figures: dict[str, Any] = {"of allowed": worst, "MB": graph.bytes_moved * 1e-6}
        if device == "cuda":
            figures["us"] = device_milliseconds(lambda: fast(*inputs)) * 1e3
            figures["eager us"] = device_milliseconds(lambda: step(*inputs)) * 1e3
    return figures


def autocast(device: str) -> dict[str, Any]:
    """A region of ``torch.autocast`` around the call: the types of eager's results, its numbers within bfloat16's."""
    model, plain, exact = _made(device, train=False)
    fast, _ = compiled(model, device)
    x = _tokens(0, device)
    with torch.no_grad():
        for _ in range(2):
            with torch.autocast(device, torch.bfloat16):
                ours, eager = fast(x), plain(x)
            assert ours.dtype == eager.dtype
            worst = _agree([ours], [eager], [exact(x)])
        _agree([fast(x)], [plain(x)], [exact(x)])  # and outside of it
    return {"of allowed": worst}


def bad_index(device: str) -> dict[str, Any]:
    """It is told with the next call, or with the one behind that, and does not end the process."""
    from dcir.errors import IndexOutOfRange

    model, plain, exact = _made(device, train=False)
    fast, _ = compiled(model, device)
    good = _tokens(0, device)
    with torch.no_grad():
        fast(good)
        told = 0
        try:
            fast(good + 100)
            torch.cuda.synchronize() if device == "cuda" else None
            fast(good)
        except IndexOutOfRange:
            told = 1
        assert told, "nobody told of an index out of range"
        return {"of allowed": _agree([fast(good)], [plain(good)], [exact(good)])}


def cases(device: str = "cuda") -> Iterable[Case]:
    """What needs no graph of CUDA's first."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        yield f"decode {str(dtype).removeprefix('torch.')}", functools.partial(decoded, dtype, device)
    for run in (bad_index, autocast, profiled, replayed, replayed_training):
        yield run.__name__.replace("_", " "), functools.partial(run, device)
    if device == "cuda":
        yield "captured by user", functools.partial(captured_by_user, device)


if __name__ == "__main__":
    work(cases)
