"""Every way to change a parameter shows in the next call, whether or not PyTorch counts it; what nobody touches costs nothing."""

from __future__ import annotations

import copy
import ctypes
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import dcir
from dcir.runtime import uncounted
from dcir.runtime.preparation import Digests, Preparation

pytestmark = pytest.mark.in_turn(3)


class Net(nn.Module):
    """A packed product, a packed convolution, and a folded normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 40, 3), nn.BatchNorm2d(40), nn.Linear(640, 50)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).flatten(1))


def ready(model: nn.Module | None = None, calls: int = 1, **options: Any) -> tuple[nn.Module, Any, Callable[[], None]]:
    """A model, its optimised form after some calls, and a check that both agree."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Net() if model is None else model
    model.eval()
    fast, x = dcir.optimize(model, **options), torch.randn(2, 3, 6, 6)

    def same() -> None:
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)

    for _ in range(calls):
        same()
    return model, fast, same


def _row(m: Any) -> None:
    m.head.weight.data[7] = 5


def _element(m: Any) -> None:
    m.head.weight.data[33, 321] += 20


def _elements_of_all(m: Any) -> None:
    for p in (v for v in m.state_dict(keep_vars=True).values() if v.is_floating_point()):
        p.data.view(-1)[p.numel() // 3] += 3


def _numpy(m: Any) -> None:
    m.conv.weight.detach().numpy()[3, 1, 2, 2] += 9


def _asarray(m: Any) -> None:
    np.asarray(m.head.weight.detach())[12, 34] -= 9


def _dlpack(m: Any) -> None:
    torch.from_dlpack(m.head.weight.detach())[12, 34] -= 9


def _numpy_dlpack(m: Any) -> None:
    np.from_dlpack(m.head.bias.detach())[12] -= 9


def _to_dlpack(m: Any) -> None:
    torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(m.head.weight.detach()))[1, 2] -= 9


def _storage_item(m: Any) -> None:
    m.head.bias.untyped_storage()[4 * 17 + 3] = 0x44


def _typed_storage(m: Any) -> None:
    m.head.weight.storage()[640 * 20 + 3] = 7.0


def _storage_fill(m: Any) -> None:
    m.norm.running_mean.untyped_storage().fill_(0)


def _storage_copy(m: Any) -> None:
    m.head.bias.untyped_storage().copy_(torch.randn(50).untyped_storage())


def _storage_slice(m: Any) -> None:
    m.head.weight.untyped_storage()[4 * 640 :][4 * (640 * 32 + 321) + 3] ^= 0x7


def _tensor_of_a_storage_slice(m: Any) -> None:
    torch.empty(0).set_(m.head.weight.untyped_storage()[: 4 * 640 * 40], 640 * 33 + 321, (1,), (1,)).add_(300)


def _set_by_name(m: Any) -> None:
    torch.ops.aten.set_(torch.empty(0), m.head.weight.detach())[33, 321] += 300


def _set_by_full_name(m: Any) -> None:
    torch.ops.aten.set_.source_Tensor(torch.empty(0), m.head.weight.detach())[33, 321] += 300


def _apply(m: Any) -> None:
    m.head.weight.detach().apply_(lambda x: x + 5 if abs(x) > 0.039 else x)


def _map(m: Any) -> None:
    m.head.weight.detach().map_(torch.ones(50, 640), lambda x, y: x + 5 * y if abs(x) > 0.039 else x)


def _map2(m: Any) -> None:
    ones = torch.ones(50, 640)
    m.head.weight.detach().map2_(ones, ones, lambda x, y, z: x + 5 * y * z if abs(x) > 0.039 else x)


def _alias(m: Any) -> None:
    torch.empty(0).set_(m.head.weight)[3, 3] = 11


def _shallow_copy(m: Any) -> None:
    copy.copy(m.head.weight).detach()[3, 4] = 11


def _set_data(m: Any) -> None:
    m.head.weight.data = torch.randn(50, 640)


def _set(m: Any) -> None:
    with torch.no_grad():
        m.head.weight.set_(torch.randn(50, 640))


def _of_data(m: Any) -> None:
    """A parameter over the same memory with a count of its own, made by way of an alias that is gone."""
    if not hasattr(m, "twin"):
        m.twin = nn.Parameter(m.head.weight.data.detach())
    with torch.no_grad():
        m.twin[2, 3] += 7


def _put_back(m: Any) -> None:
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(m.head.weight):
        m.head.weight[5, 5] = 30


def _foreach(m: Any) -> None:
    with torch.no_grad():
        torch._foreach_mul_([m.head.weight, m.conv.weight], 2)


def _vector(m: Any) -> None:
    vector = nn.utils.parameters_to_vector(m.parameters())
    nn.utils.vector_to_parameters(vector * 0.5, m.parameters())


def _fused(m: Any) -> None:
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    torch.optim.AdamW(m.parameters(), lr=0.1, fused=True).step()
    m.zero_grad()


def _init(m: Any) -> None:
    nn.init.normal_(m.head.weight)


def _load(m: Any) -> None:
    m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()})


WAYS = [
    v
    for k, v in list(globals().items())
    if k.startswith("_") and callable(v) and getattr(v, "__module__", "") == __name__
]


@pytest.mark.parametrize("calls", [1, 12], ids=["first calls", "quick calls"])
@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__.strip("_"))
def test_every_way_shows_in_the_next_call(way: Callable[[Any], None], calls: int) -> None:
    model, _, same = ready(calls=calls)
    way(model)
    same()
    same()
    way(model)
    same()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("way", ["data", "numpy", "dlpack", "slice"])
def test_an_alias_that_lives_on(way: str, when: str) -> None:
    """It is written again and again, long after it was made; once it is gone, so is what looking for that costs."""

    def make() -> Any:
        p = model.head.weight
        if way == "slice":
            part: Any = p.untyped_storage()[: 4 * 640 * 40]
            return torch.empty(0).set_(part, 0, (40, 640), (640, 1))
        return p.data if way == "data" else p.detach().numpy() if way == "numpy" else np.from_dlpack(p.detach())

    model: Any = Net()
    alias = make() if when == "before" else None
    model, fast, same = ready(model, calls=12)
    alias = make() if alias is None else alias
    for n in range(12):
        alias[n, 2 * n] += 5
        same()
    shown = "given away through DLPack" if way == "dlpack" else "seen by another tensor or array"
    assert f"1 parameters (128.0 KB) are compared in every call, their memory is {shown}" in str(fast.dcir.explain())
    del alias
    same()
    same()
    # Nobody can tell when those let go to whom it was given through DLPack.
    assert ("compared in every call" in str(fast.dcir.explain())) == (way == "dlpack")


def test_memory_that_is_not_torchs() -> None:
    model: Any = Net()
    array = np.random.default_rng(0).normal(size=(50, 640)).astype(np.float32)
    model.head.weight = nn.Parameter(torch.from_numpy(array))
    model, fast, same = ready(model, calls=12)
    for n in range(6):
        array[n, n] += 9
        same()
    assert "1 parameters (128.0 KB) are compared in every call, their memory is held by others" in str(
        fast.dcir.explain()
    )
    assert fast.dcir.explain().to_json()["compared_in_every_call"] == [
        {"bytes": 128000, "reason": "held by others than PyTorch (NumPy, a mapped file)"}
    ]


def write(weight: Tensor, row: int) -> None:
    weight[row] += 3


def test_another_process_on_shared_memory() -> None:
    model: Any = Net().share_memory()
    model, fast, same = ready(model, calls=8)
    process = multiprocessing.get_context("spawn")
    for row in (3, 11):
        other = process.Process(target=write, args=(model.head.weight.detach(), row))
        before = model.head.weight.detach().clone()
        other.start()
        other.join()
        assert not torch.equal(before, model.head.weight)
        same()
    assert "shared with other processes" in str(fast.dcir.explain())


def test_shared_later() -> None:
    model, _, same = ready(calls=8)
    model.share_memory()
    same()
    other = torch.multiprocessing.reductions.reduce_tensor(model.head.weight.detach())
    again: Any = other[0](*other[1])  # a tensor as another process would have it
    again[3] += 5
    same()
    again[4] += 5
    same()


@pytest.mark.parametrize("shared", [True, False])
def test_a_mapped_file(tmp_path: Path, shared: bool) -> None:
    model: Any = Net()
    file = tmp_path / "weights"
    np.random.default_rng(0).normal(size=32000).astype(np.float32).tofile(file)
    weight = torch.from_file(str(file), shared=shared, size=32000).view(50, 640)
    model.head.weight = nn.Parameter(weight)
    model, _, same = ready(model, calls=8)
    other = np.memmap(file, np.float32, "r+", shape=(50, 640))
    for row in (3, 44):
        other[row] += 2
        other.flush()
        same()


def test_weights_of_a_file_that_was_mapped(tmp_path: Path) -> None:
    model: Any = Net()
    save_file({"w": model.head.weight.detach()}, tmp_path / "w.safetensors")
    model.head.weight = nn.Parameter(load_file(tmp_path / "w.safetensors")["w"])
    model, _, same = ready(model, calls=8)
    _element(model)
    same()


COLLECTIVES = """
import sys, torch, dcir, torch.distributed as dist
from tests.runtime.test_uncounted import ready
dist.init_process_group("gloo", rank=int(sys.argv[2]), world_size=2, init_method="file://" + sys.argv[1])
model, _, same = ready(calls=8)
for n in range(3):
    rank = dist.get_rank()
    with torch.no_grad():
        given = torch.full_like(model.head.weight, rank + n)
        dist.broadcast(given if rank == 0 else model.head.weight, 0)
        if rank == 0: model.head.weight.copy_(given)
    same()
    dist.all_reduce(model.head.bias.detach())
    same()
    work = dist.all_reduce(model.conv.weight.detach(), async_op=True)
    work.wait()
    same()
print("agreed")
"""


def test_collectives(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    commands = [[sys.executable, "-c", COLLECTIVES, str(tmp_path / "meet"), str(rank)] for rank in (0, 1)]
    processes = [
        subprocess.Popen(c, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for c in commands
    ]
    for process in processes:
        out, errors = process.communicate(timeout=240)
        assert "agreed" in out, errors[-2000:]


LATE = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(600, 50), nn.ReLU(), nn.Linear(50, 40)).eval()
view, alias = model[0].weight.detach().numpy(), model[2].weight.data
import dcir
fast, x = dcir.optimize(model), torch.randn(3, 600)
with torch.no_grad():
    for n in range(12):
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
        view[n, n] += 5
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
        alias[n, 2 * n] -= 5
print("agreed")
"""


def test_arrays_older_than_the_notes(tmp_path: Path) -> None:
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run([sys.executable, "-c", LATE], cwd=root, capture_output=True, text=True, timeout=240)
    assert "agreed" in done.stdout, done.stderr[-2000:]


def test_a_compiled_file(tmp_path: Path) -> None:
    from dcir.driver.api import save

    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 3, 6, 6)
    save(model, (x,), tmp_path / "net.dcir")
    loaded: Any = dcir.load(tmp_path / "net.dcir")
    for change in (_row, _element, _numpy, _load, _elements_of_all):
        for m in (model, loaded):
            change(m)
        torch.testing.assert_close(loaded(x), model(x).detach(), rtol=1e-4, atol=1e-4)


class Counted:
    """How often values are prepared and memory is digested."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = self.digested = 0
        made, taken = Preparation._made, Digests._take

        def count_made(*args: Any) -> Any:
            self.made += 1
            return made(*args)

        def count_taken(digests: Digests) -> Any:
            self.digested += 1
            return taken(digests)

        monkeypatch.setattr(Preparation, "_made", count_made)
        monkeypatch.setattr(Digests, "_take", count_taken)


def test_what_nobody_touches_is_prepared_once_and_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    model, fast, same = ready(calls=3)
    held = model.state_dict(), list(model.parameters()), copy.deepcopy(model)  # which counts, or is a copy
    x = torch.randn(2, 3, 6, 6)
    same()
    before = counted.made
    for _ in range(20):
        with torch.no_grad():
            fast(x).numpy()[:] = 3  # results are nobody's parameters
        x.data[0] = 1
        same()
    assert before <= 2 and counted.made == before and counted.digested == 0 and held


def test_frozen_looks_at_nothing_and_always_at_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    model: Any = Net()
    model.head.weight = nn.Parameter(torch.from_numpy(np.ones((50, 640), np.float32)))
    _, fast, same = ready(model, calls=5, prepare="frozen")
    assert (counted.made, counted.digested) == (1, 0)
    _row(model)
    with pytest.raises(AssertionError):
        same()
    fast.dcir.refresh()
    for _ in range(8):
        same()
    assert (counted.made, counted.digested) == (2, 0)
    ready(calls=5, prepare="always")
    assert counted.made == 7


@pytest.mark.parametrize("size", [1, 3, 64, 1000, (1 << 16) + 5, (1 << 18) + 3])
def test_a_digest_sees_every_single_element(size: int) -> None:
    _, fast, _ = ready()
    (program,) = fast.dcir.session.programs
    values = torch.zeros(size)
    digests = Digests(program.preparation.digest, [values])
    assert digests.same() and digests.nbytes == 4 * size
    for at in {0, size // 2, size - 1, *range(0, size, max(1, size // 37))}:
        for bits in (0x80000000, 1, 0x7FC00001):  # minus zero, the least number, a NaN
            ctypes.c_uint32.from_address(values.data_ptr() + 4 * at).value = bits
            assert not digests.same()
            ctypes.c_uint32.from_address(values.data_ptr() + 4 * at).value = 0
    assert digests.same()


def test_swapped_elements_and_blocks_show() -> None:
    _, fast, _ = ready()
    (program,) = fast.dcir.session.programs
    values = torch.arange(3 << 16, dtype=torch.float32)
    digests = Digests(program.preparation.digest, [values, values[:1000]])
    for a, b in ((0, 1), (0, 8), (5, 5 + (1 << 16)), (0, 64)):
        swapped = values.clone()
        swapped[[a, b]] = swapped[[b, a]]
        assert Digests(program.preparation.digest, [swapped, swapped[:1000]])._values[0] != digests._values[0]
    blocks = torch.cat([values[1 << 16 : 2 << 16], values[: 1 << 16], values[2 << 16 :]])
    assert Digests(program.preparation.digest, [blocks])._values[0] != digests._values[0]


def _scripted(x: Tensor, y: Tensor) -> Tensor:
    made: Tensor = torch.ops.aten.set_(x, y)
    return made


def test_torch_is_as_it_was() -> None:
    """What notes behaves like what it stands for: for subclasses, for tracing, for those who look it up."""
    uncounted.install()
    t = torch.randn(3, requires_grad=True)
    assert not t.data.requires_grad and t.data.data_ptr() == t.data_ptr()
    with pytest.raises(RuntimeError):
        t.numpy()
    with pytest.raises(TypeError):
        torch.ones(2, device="meta").numpy()
    assert torch.overrides.is_tensor_method_or_property(torch.Tensor.numpy)

    class Seen(Tensor):
        calls: list[Any] = []  # noqa: RUF012

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            cls.calls.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    s = torch.ones(2).as_subclass(Seen)
    Seen.calls.clear()
    assert s.data.sum() == 2 and s.numpy().sum() == 2
    assert torch.Tensor.numpy in Seen.calls and any(getattr(f, "__name__", "") == "__get__" for f in Seen.calls)
    # The graph of a module that uses them is what it was.
    torch._dynamo.reset()
    assert torch.compile(lambda x: x.data * 2, backend="eager", fullgraph=True)(torch.ones(2)).sum() == 4
    assert (
        torch.compile(lambda x: torch.from_numpy(x.numpy() * 2), backend="eager", fullgraph=True)(torch.ones(2)).sum()
        == 4
    )
    assert "aten.detach" in torch.fx.experimental.proxy_tensor.make_fx(lambda x: x.data + 1)(torch.ones(2)).code
    with torch._subclasses.FakeTensorMode():
        assert torch.ones(2).data.shape == (2,)
        assert torch.ops.aten.set_(torch.empty(0), torch.ones(2)).shape == (2,)
    assert torch.jit.script(_scripted)(torch.empty(0), torch.ones(2)).sum() == 2
    assert torch.arange(4, dtype=torch.uint8).untyped_storage()[1:3].tolist() == [1, 2]


class Words(nn.Module):
    """A product whose weight the exporter to ONNX stores transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(48, 96), nn.Linear(96, 48)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


def test_an_export_to_onnx_leaves_nothing_to_compare(tmp_path: Path) -> None:
    torch._dynamo.reset()
    model, x = Words().eval(), torch.randn(2, 5, 48)
    fast = dcir.optimize(model)
    with torch.no_grad():
        fast(x)
        program = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
        program.save(str(tmp_path / "m.onnx"))  # type: ignore[union-attr]
        arrays = [v.const_value.numpy() for v in program.model.graph.initializers.values()]  # type: ignore[union-attr]
        shared = [
            a
            for a in arrays
            for p in model.parameters()
            if a.__array_interface__["data"][0] == p.untyped_storage().data_ptr()
        ]
        assert shared and not any(a.flags.writeable for a in shared)
        fast(x)
        assert uncounted.loose(list(model.parameters())) == {}
        model.up.weight.data[3] = 2
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
        array = model.down.weight.detach().numpy()  # of ours: it can be written, and is looked at
        fast(x)
        array[5] = 3
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
