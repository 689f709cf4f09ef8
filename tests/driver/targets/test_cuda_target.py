"""The target "cuda" through the kernels' twin on the CPU: networks train with the numbers of "cpp", what it lacks is refused."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dcir
from dcir.cache import Cache
from dcir.codegen.compile import compile_network
from dcir.codegen.cuda.nvrtc import find_nvrtc
from dcir.cost.cuda import SETTING, TWIN, cuda_costs, cuda_machine
from dcir.driver.targets.cuda import CudaTarget
from dcir.driver.targets.host import host_machine, host_target
from dcir.driver.targets.of_device import with_target
from dcir.errors import CompilerNotFound, IndexOutOfRange, OptionError
from dcir.kernel_images import images_of
from tests.harness import check_close
from tests.transforms.imported import imported


@pytest.fixture(autouse=True)
def twin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels run on the CPU."""
    monkeypatch.setenv(SETTING, TWIN)
    torch._dynamo.reset()
    yield


class Perceptron(nn.Module):
    """Layers with a norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.one_layer, self.normalised, self.other_layer = nn.Linear(11, 24), nn.LayerNorm(24), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.other_layer(self.normalised(F.gelu(self.one_layer(x))))


class Transformer(nn.Module):
    """Embeddings and a layer of attention."""

    def __init__(self, size: int = 16, words: int = 20) -> None:
        super().__init__()
        self.words, self.norm, self.three = nn.Embedding(words, size), nn.LayerNorm(size), nn.Linear(size, 3 * size)
        self.out, self.head = nn.Linear(size, size), nn.Linear(size, words)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        q, k, v = self.three(self.norm(x)).unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return self.head(x).mean(1)


def perceptron() -> tuple[nn.Module, Tensor, int]:
    torch.manual_seed(0)
    return Perceptron(), torch.randn(7, 11), 5


def convolutions() -> tuple[nn.Module, Tensor, int]:
    torch.manual_seed(1)
    body = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 6, 3, stride=2))
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(6 * 9, 4)), torch.randn(4, 3, 15, 14), 4


def transformer() -> tuple[nn.Module, Tensor, int]:
    torch.manual_seed(2)
    return Transformer(), torch.randint(0, 20, (3, 6)), 20


NETWORKS: list[Callable[[], tuple[nn.Module, Tensor, int]]] = [perceptron, convolutions, transformer]


def wide(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


@pytest.mark.parametrize("level", [0, 2, 4])
@pytest.mark.parametrize("make", NETWORKS)
def test_inference(make: Any, level: int) -> None:
    model, x, _ = make()
    model.eval()
    fast = dcir.optimize(model, target="cuda", level=level)
    with torch.no_grad():
        for _ in range(2):
            check_close(fast(x), model(x), copy.deepcopy(model).double()(wide(x)))
    (graph,) = fast.dcir.explain().graphs
    assert graph.kernels > 0 and not graph.fallbacks


@pytest.mark.parametrize("make", NETWORKS)
def test_gradients(make: Any) -> None:
    """Of every parameter, twice."""
    model, x, classes = make()
    target = torch.arange(len(x)) % classes
    exact, twin_model = copy.deepcopy(model).double(), copy.deepcopy(model)
    fast = dcir.optimize(model, target="cuda")
    for _ in range(2):
        for m, given in ((fast, x), (twin_model, x), (exact, wide(x))):
            m.zero_grad()
            F.cross_entropy(m(given), target).backward()
    for (name, p), q, e in zip(model.named_parameters(), twin_model.parameters(), exact.parameters(), strict=True):
        check_close(p.grad, q.grad, e.grad, factor=4, units=16, what=name)


@pytest.mark.parametrize("make", NETWORKS)
def test_a_training_step_as_the_target_cpp_has_it(make: Any) -> None:
    """Losses and parameters of five steps with AdamW."""
    losses, after = {}, {}
    for name in ("cpp", "cuda"):
        torch._dynamo.reset()
        model, x, classes = make()
        target = torch.arange(len(x)) % classes
        step = dcir.train_step(
            model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=1e-2), target=name
        )
        losses[name] = [float(step(x, target)) for _ in range(5)]
        after[name] = [p.detach() for p in model.parameters()]
    assert losses["cuda"][-1] < losses["cuda"][0]
    torch.testing.assert_close(torch.tensor(losses["cuda"]), torch.tensor(losses["cpp"]), rtol=1e-4, atol=1e-5)
    if (
        make is perceptron
    ):  # others have parameters whose gradients are rounding errors alone, which AdamW makes as large as any
        torch.testing.assert_close(after["cuda"], after["cpp"], rtol=2e-3, atol=2e-4)


def test_a_loop_with_an_optimizer_of_torch() -> None:
    """Plain autograd around the compiled module."""
    model, x, classes = perceptron()
    fast = dcir.optimize(model, target="cuda")
    optimizer = torch.optim.AdamW(fast.parameters(), lr=1e-2)
    target, losses = torch.arange(len(x)) % classes, []
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(fast(x), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] * 0.9


def test_the_door_of_torch_compile() -> None:
    model, x, _ = perceptron()
    fast = torch.compile(model.eval(), backend="dcir", options={"target": "cuda"})
    with torch.no_grad():
        check_close(fast(x), model(x), copy.deepcopy(model).double()(x.double()))
    assert dcir.sessions()[-1].session.options.target == "cuda"


def test_a_bad_index_is_told_with_its_operator() -> None:
    model, x, _ = transformer()
    fast = dcir.optimize(model.eval(), target="cuda")
    with torch.no_grad():
        fast(x)
        with pytest.raises(IndexOutOfRange, match="index out of range"):
            fast(x + 100)
        assert fast(x).isfinite().all()  # and is forgotten


def test_kernels_are_named_by_content_and_hold_no_name_of_the_model(tmp_path: Path) -> None:
    model, x, _ = perceptron()
    with torch.no_grad():
        dcir.optimize(model.eval(), target="cuda", debug_dir=tmp_path / "debug")(x)
    texts = [p.read_text() for p in (tmp_path / "debug").rglob("*.cpp")]
    assert any("__global__" in t for t in texts)
    assert not any(word in t for t in texts for word in ("one_layer", "other_layer", "Perceptron", "normalised"))


@pytest.mark.parametrize(("options", "why"), [
    ({"tune": 1.0}, "cuda makes its kernels in one way"),
    ({"record_function": True}, "cuda tells of calls alone"),
])  # fmt: skip
def test_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError) as refused:
        dcir.optimize(torch.exp, target="cuda", **options)
    assert why in str(refused.value)


def test_a_machine_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(OptionError, match="no GPU that PyTorch can use"):
        dcir.optimize(nn.Linear(2, 2), target="cuda")


def test_another_word_of_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "tvin")
    with pytest.raises(OptionError, match="DCIR_CUDA cannot be 'tvin'"):
        dcir.optimize(nn.Linear(2, 2), target="cuda")


class OnGpu:
    """What a tensor on a GPU says of itself; there is no such tensor here."""

    is_cuda = True


def test_a_tensor_on_a_gpu_chooses_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    from dcir.driver.targets import of_device

    monkeypatch.setattr(of_device.torch, "Tensor", OnGpu)
    assert with_target({"level": 2}, [OnGpu()]) == {"level": 2, "target": "cuda"}
    assert with_target({"target": "cpp"}, [OnGpu()]) == {"target": "cpp"}
    assert with_target({}, ["no tensor"]) == {}


def test_the_machine_is_a_gpu_of_its_kind() -> None:
    target = host_target(2, "cuda")
    assert (target.machine.arch, target.machine.multiprocessors, target.machine.twin) == ("sm_90a", 132, True)
    assert target.machine.key == "sm_90a 132" and not target.machine.isa.matrix_unit
    assert cuda_costs(cuda_machine(host_machine(1))).matrix_unit is None


def test_machine_code_for_a_gpu_lies_behind_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is made without one."""
    try:
        find_nvrtc()
    except CompilerNotFound as e:
        pytest.skip(f"NVRTC is not installed: {e.message}")
    monkeypatch.setenv(SETTING, "")
    done = imported(lambda x: x.softmax(-1), torch.randn(5, 300))
    done.network.target = CudaTarget(host_machine(2))
    library = compile_network(done.network, cache=Cache(tmp_path))
    images = images_of(library.path)
    assert images and {name.split("/")[0] for name in images} == {"sm_90a"}
    assert all(i.startswith(b"\x7fELF") and n.split("/")[1].encode() in i for n, i in images.items())


def test_a_cpu_run_imports_nothing_of_it() -> None:
    """A program for the CPU waits for no part of another target."""
    text = """
import sys, torch, dcir
model = dcir.optimize(torch.nn.Linear(3, 2))
with torch.no_grad():
    model(torch.randn(2, 3))
print([m for m in sys.modules if m.startswith("dcir.") and "cuda" in m])
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_attention_is_products_of_libraries_and_a_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device: also a backward in bfloat16, whose products are no loop nests."""
    from dcir.driver.measure.predicted_bytes import rewritten_graphs
    from dcir.ops.library.attention import AttentionSpec
    from dcir.ops.library.contraction import ContractionSpec
    from dcir.ops.library.library_call import LibraryCall
    from dcir.options import Options

    model = Transformer(32).bfloat16()
    fn = nn.Sequential(model, nn.Flatten(0))
    nets = [
        net for _, net in rewritten_graphs(fn, (torch.zeros(3, 6, dtype=torch.int64),), Options.make(target="cuda"))
    ]
    specs = [op.spec for net in nets for op in net.ops()]
    batched = [s for s in specs if isinstance(s, LibraryCall) and isinstance(s.of, ContractionSpec) and s.of.batch]
    assert len(nets) == 2 and len(batched) == 6
    assert not any(isinstance(s, AttentionSpec | ContractionSpec) for s in specs)
