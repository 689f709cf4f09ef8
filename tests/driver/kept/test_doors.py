"""Every way to compile with kept traces, in two processes: the second one traces nothing, or there is a reason that is named."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dcir
from dcir.errors import OptionError
from tests.endtoend.test_architectures import _import_or_skip

pytestmark = pytest.mark.in_turn(6)

BEGIN = """
import copy, json, sys
import torch, dcir
from torch import nn
from torch._dynamo.utils import counters
from dcir.frontends.torch.tape import programs_run
from tests.driver.kept.counted import counted_traces

counting = counted_traces()
ran = counting.__enter__()
torch.manual_seed(0)
"""
END = """
traced = counters["stats"].get("unique_graphs", 0)
found = {"traced": traced, "ahead": len(ran), "programs": programs_run(), "results": results, "worst": worst}
print("RESULT " + json.dumps(found))
"""
GENERATES = """
from tests.endtoend.test_architectures import _import_or_skip

_import_or_skip("transformers")
import transformers

sizes = dict(vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64)
config = transformers.LlamaConfig(**sizes, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=None)
plain = transformers.LlamaForCausalLM(config).eval()
fast = dcir.optimize(copy.deepcopy(plain), keep_traces=True)
results, worst = [], 0.0
for length in (9, 5, 17):
    ids = torch.randint(3, 100, (1, length))
    how = dict(max_new_tokens=6, do_sample=False)
    got, want = fast.generate(ids, **how), plain.generate(ids, **how)
    worst = max(worst, float((got != want).sum()))
    results.append(got.tolist())
"""
READS = """
net = dcir.load(sys.argv[1]).eval()
fast = dcir.optimize(net, keep_traces=True)
results, worst = [], 0.0
with torch.no_grad():
    for rows in (4, 7, 5):
        x = torch.randn(rows, 8)
        got, want = fast(x), net.forward(x)
        worst = max(worst, float((got - want).abs().max()))
        results.append(float(got.double().sum()))
"""
COMPILES = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        x = torch.relu(self.one(x))
        return self.two(x) * SCALE


SCALE = float(sys.argv[1])
train = sys.argv[2] == "training"
plain = Net().train(train)
own = copy.deepcopy(plain)
fast = torch.compile(own, backend="dcir", options={"keep_traces": True})
results, worst = [], 0.0
with torch.set_grad_enabled(train):
    for rows in map(int, sys.argv[3].split()):
        x = torch.randn(rows, 8)
        got, want = fast(x), plain(x)
        pairs = [(got, want)]
        if train:
            for m, r in ((own, got), (plain, want)):
                m.zero_grad()
                r.pow(2).mean().backward()
            pairs += [(a.grad, b.grad) for a, b in zip(own.parameters(), plain.parameters())]
        worst = max(worst, *(float((a - b).abs().max()) for a, b in pairs))
        results.append([float(a.double().sum()) for a, _ in pairs])
"""


def process(folder: Path, text: str, *arguments: Any, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """One process, whose results must be those of eager mode."""
    (folder / "program.py").write_text(BEGIN + text + END)
    path = os.pathsep.join((str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, "program.py", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300, cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "DCIR_CACHE_DIR": str(folder / "cache"), **(environment or {})},
    )  # fmt: skip
    rows = [row for row in done.stdout.splitlines() if row.startswith("RESULT ")]
    assert rows, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(rows[0].removeprefix("RESULT "))
    assert found["worst"] < 1e-5, found
    return found


def test_generation_with_a_growing_cache_traces_nothing_in_a_second_process(tmp_path: Path) -> None:
    _import_or_skip("transformers")
    first = process(tmp_path, GENERATES)
    again = process(tmp_path, GENERATES)
    assert first["traced"] >= 2
    assert (again["traced"], again["results"]) == (0, first["results"])


def test_a_file_of_onnx_is_traced_once_and_another_file_is_not_taken_for_it(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    def write(name: str, operator: str, factor: float) -> None:
        torch.manual_seed(0)
        weight = numpy_helper.from_array(torch.randn(8, 8).numpy(), "w")
        scale = numpy_helper.from_array(torch.tensor(factor).numpy(), "k")
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node(operator, ["a"], ["b"]),
            helper.make_node("Mul", ["b", "k"], ["y"]),
        ]  # fmt: skip
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 8]) for n in ("x", "y")]
        graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight, scale])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(made, tmp_path / name)

    write("relu.onnx", "Relu", 2.0)
    write("tanh.onnx", "Tanh", 2.0)
    write("threefold.onnx", "Relu", 3.0)
    first = process(tmp_path, READS, "relu.onnx")
    assert first["traced"] >= 1
    again = process(tmp_path, READS, "relu.onnx")
    assert (again["traced"], again["results"]) == (0, first["results"])
    for other in ("tanh.onnx", "threefold.onnx"):
        assert process(tmp_path, READS, other)["results"] != first["results"]


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_what_torch_compile_traces_is_kept(tmp_path: Path, mode: str) -> None:
    first = process(tmp_path, COMPILES, 2.0, mode, "4 7 5")
    assert first["traced"] == 2
    again = process(tmp_path, COMPILES, 2.0, mode, "4 7 5")
    assert again["results"] == first["results"]
    if mode == "training":
        assert again["traced"] == 0
    assert process(tmp_path, COMPILES, 3.0, mode, "4")["traced"] == 1


def test_torch_compile_traces_sizes_that_no_kept_program_is_for(tmp_path: Path) -> None:
    process(tmp_path, COMPILES, 2.0, "training", "4 7")
    assert process(tmp_path, COMPILES, 2.0, "training", "7 3000 5")["traced"] == 1
    assert process(tmp_path, COMPILES, 2.0, "training", "7 3000 5")["traced"] == 0


def test_a_training_step_says_that_it_is_traced_in_every_process() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(OptionError, match="traced in every process"):
        dcir.train_step(model, nn.MSELoss(), optimizer, keep_traces=True)


def test_where_keeping_is_the_default_a_training_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCIR_KEEP_TRACES", "1")
    model = nn.Linear(4, 4)
    step = dcir.train_step(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))
    assert step(torch.randn(2, 4), torch.randn(2, 4)).isfinite()
