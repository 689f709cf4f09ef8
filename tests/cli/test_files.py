"""The verbs on real files: compile, run, check, bench, explain; one answer from all of them."""

import json
import runpy
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import dcir
from dcir.cli.main import main
from dcir.driver import api
from dcir.driver.measure import bench
from dcir.driver.verify.compare import compare
from dcir.errors import InvalidInput, OptionError
from dcir.ir.loop_nest import LoopNest
from dcir.runtime.sized_model import SizedModel
from dcir.transforms.base import PassResult
from dcir.transforms.tidy.merge_common_subexpressions import MergeCommonSubexpressions


def call(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def data(done):
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """relu(x @ w + b) with an open batch size, and the indices of the largest values."""
    generator = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(generator.standard_normal((6, 4), np.float32), "lin/w"),
        numpy_helper.from_array(generator.standard_normal(4, np.float32), "lin/b"),
    ]
    nodes = [
        helper.make_node("MatMul", ["in put", "lin/w"], ["m"]),
        helper.make_node("Add", ["m", "lin/b"], ["s"]),
        helper.make_node("Relu", ["s"], ["out:0"]),
        helper.make_node("ArgMax", ["s"], ["best"], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("in put", TensorProto.FLOAT, ["batch", 6])],
        [
            helper.make_tensor_value_info("out:0", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("best", TensorProto.INT64, None),
        ],
        weights,
    )
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    return path


@pytest.fixture(scope="module")
def compiled(model):
    path = model.with_suffix(".dcir")
    seen = []
    api.compile_file(model, path, shapes={"in put": [3, 6]}, progress=lambda *step: seen.append(step))
    assert {step for step, _, _ in seen} >= {"passes"}
    assert all(done <= total for _, done, total in seen)
    return path


def test_an_open_size_is_asked_for(model):
    done = call("compile", model)
    assert done.exit_code == 2
    assert "[batch,6]" in done.stderr
    assert "--shape in put=[1,6]" in done.stderr


def test_compile_and_run(model, compiled, tmp_path):
    x = np.random.default_rng(1).standard_normal((3, 6), np.float32)
    np.save(tmp_path / "x.npy", x)
    results = {}
    for file, name in ((model, "in put"), (compiled, api.load(compiled).dcir.inputs[0].name)):
        for given in (f"{name}={tmp_path / 'x.npy'}", tmp_path / "x.npy"):
            done = data(call("run", file, "--input", given, "--output", tmp_path / file.name, "--json"))
            results[file] = {o["name"]: np.load(o["file"]) for o in done["outputs"]}
    w, b = (numpy_helper.to_array(i) for i in onnx.load(model).graph.initializer)
    for arrays in results.values():
        np.testing.assert_allclose(arrays["out:0"], np.maximum(x @ w + b, 0), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(arrays["best"], (x @ w + b).argmax(1))


def test_load_gives_a_trainable_module(model):
    net = dcir.load(model, level=2)
    x = torch.randn(2, 6)
    out, _ = net(x)
    out.sum().backward()
    assert any(p.grad is not None for p in net.parameters())
    assert net.dcir.options.level == 2
    assert net.dcir.explain().graphs


def test_explain(model, compiled):
    assert "graph 0 (inference)" in call("explain", compiled).output
    live = data(call("explain", model, "--shape", "in put=[3,6]", "--json", "-O0"))
    assert [p["name"] for p in live["graphs"][0]["passes"]] == ["run-in-order"]


def test_check(tmp_path):
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("Softmax", ["x"], ["y"]), helper.make_node("Gather", ["t", "i"], ["z"])]
    table = numpy_helper.from_array(np.arange(5, dtype=np.float32), "t")
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 5]),
        helper.make_tensor_value_info("i", TensorProto.INT64, [7]),
    ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "yz"]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [table])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    for level in ("-O0", "-O4"):
        result = data(call("check", path, level, "--json"))
        assert result["ok"]
        assert result["error"] <= result["tolerance"]
        assert set(result["details"]) == {"y", "z"}
    assert "agrees: error" in call("check", path).output


def test_check_within_bounds(model, tmp_path, monkeypatch):
    """One file for all sizes is compared at several of them, and a size whose results are wrong is named."""
    shape = ("--shape", "in put=[batch,6]")
    result = data(call("check", model, *shape, "--bound", "batch=1..21", "--json"))
    assert result["ok"]
    assert set(result["details"]) > {f"batch={n}: {name}" for n in (1, 11, 20, 21) for name in ("out:0", "best")}
    other = data(call("check", model, *shape, "--bound", "batch=1..21", "--seed", "1", "--json"))["details"]
    assert len(other) > 8 and other.keys() != result["details"].keys()  # some of the sizes are drawn
    assert data(call("check", model, "--bound", "batch=3..", "--json"))["details"].keys() >= {
        "batch=3: best",
        "batch=21: best",
    }
    call_sized = SizedModel.__call__

    def wrong(self, x):
        out = call_sized(self, x)
        return (out[0] + (len(x) == 20), *out[1:])

    monkeypatch.setattr(SizedModel, "__call__", wrong)
    done = call("check", model, "--bound", "batch=1..21")
    assert done.exit_code == 1 and "DIFFERS: error 1" in done.output
    assert call("check", model, "--bound", "size=1..4").exit_code == 2


def test_check_bisects(tmp_path, monkeypatch):
    """A pass that is broken on purpose is named, and the file that is written shows it as long as it is."""
    path, repro = tmp_path / "m.onnx", tmp_path / "repro.py"
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((5, 3), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"]),
        helper.make_node("Cos", ["b"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    assert data(call("check", path, "--bisect", "-o", repro, "--json"))["found"] is None
    assert not repro.exists()

    def broken(self, net):
        outcome = PassResult()
        for op in net.ops():
            if isinstance(op.spec, LoopNest) and any(s.op == "cos" for s in op.spec.body):
                body = tuple(replace(s, op="tanh") if s.op == "cos" else s for s in op.spec.body)
                net.rewire(op, replace(op.spec, body=body), net.ins(op), net.outs(op))
                outcome.changed += 1
        return outcome

    with monkeypatch.context() as patch:
        patch.setattr(MergeCommonSubexpressions, "apply", broken)
        done = call("check", path, "--bisect", "-o", repro)
        assert done.exit_code == 1, done.output
        assert "pass merge-common-subexpressions changes numbers" in done.output
        assert f"{repro}, 1 operators" in done.output
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(repro), run_name="__main__")
        assert ended.value.code == 1
    alone = subprocess.run([sys.executable, "-W", "ignore", repro], capture_output=True, text=True, check=False)
    assert alone.returncode == 0 and "nothing changes numbers" in alone.stdout, alone.stderr


def test_a_compiled_file_holds_nothing_to_check_against(compiled):
    for more in ((), ("--bisect",)):
        done = call("check", compiled, *more)
        assert done.exit_code == 2
        assert "dcir check" in done.stderr and "MODEL.onnx" in done.stderr
    with pytest.raises(InvalidInput, match="compiled already"):
        api.compile_file(compiled, compiled)


def test_code_for_a_larger_team_runs_on_this_one(model, tmp_path):
    files = [tmp_path / f"{threads}.dcir" for threads in (1, 16)]
    x = np.random.default_rng(1).standard_normal((64, 6), np.float32)
    for path, threads in zip(files, ("1", "16"), strict=True):
        call("compile", model, "-o", path, "--shape", "in put=[64,6]", "--threads", threads)
    few, many = (api.run_file(path, [x]) for path in files)
    want = api.run_file(model, [x])
    for name, value in want.items():
        np.testing.assert_allclose(few[name], value, rtol=1e-5)
        np.testing.assert_allclose(many[name], value, rtol=1e-5)


def test_bench(compiled, tmp_path):
    result = data(call("bench", compiled, "--seconds", "0.05", "--threads", "1", "--json"))
    assert [row["name"] for row in result["rows"]] == ["dcir"]
    assert result["notes"]
    path = tmp_path / "m.onnx"
    graph = helper.make_graph(
        [helper.make_node("Tanh", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 8])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    before = torch.get_num_threads()
    text = call("bench", path, "--against", "eager", "--seconds", "0.05", "--threads", "1").output
    assert torch.get_num_threads() == before
    assert [line.split()[0] for line in text.splitlines()[2:]] == ["dcir", "eager"]
    with pytest.raises(OptionError, match="tensorflow"):
        bench.bench_file(path, ["tensorflow"], 1, None)


def test_bench_of_a_file_has_the_threads_and_the_level_of_its_code(model, tmp_path):
    path, sizes = tmp_path / "one.dcir", tmp_path / "sizes.txt"
    sizes.write_text("batch=2\nbatch=3\n")
    api.compile_file(model, path, threads=1, bounds={"batch": (1, 4)})
    for words in ([], ["--sizes", sizes]):
        found = data(call("bench", path, *words, "--threads", "2", "--seconds", "0.02", "--against", "", "--json"))
        assert found["threads"] == 1 and any("not on 2" in note for note in found["notes"])
        found = data(call("bench", path, *words, "--seconds", "0.02", "--against", "", "--json"))
        assert found["threads"] == 1 and not any("not on" in note for note in found["notes"])
        done = call("bench", path, *words, "-O0")
        assert done.exit_code == 2 and "-O is for models" in done.output


def test_passes():
    shown = data(call("passes", "--json"))["passes"]
    assert [p["name"] for p in shown] == [p.name for p in api.list_passes(4)]
    assert all(p["summary"] for p in shown)


def test_until_and_targets(model, tmp_path):
    first = api.list_passes(4)[0].name
    done = call("compile", model, "--shape", "in put=[3,6]", "--until", first, "-o", tmp_path / "m.dcir", "--json")
    assert [p["name"] for p in data(done)["graphs"][0]["passes"]] == [first]
    wrong = call("compile", model, "--shape", "in put=[3,6]", "--until", "no-such-pass", "-o", tmp_path / "n.dcir")
    assert wrong.exit_code == 2
    assert first in wrong.stderr
    dace = call("compile", model, "--shape", "in put=[3,6]", "--target", "dace", "-o", tmp_path / "n.dcir")
    assert dace.exit_code == 2
    assert "targets 'cpp' and 'cuda' only" in dace.stderr
    assert not (tmp_path / "n.dcir").exists()


def test_the_rule_of_comparison():
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    want = exact.float()
    assert compare(["y"], [want.clone()], [want], [exact]).ok
    assert not compare(["y"], [want + 1e-5], [want], [exact]).ok
    # PyTorch's own error widens what is allowed.
    assert compare(["y"], [want - 1e-5], [want + 1e-5], [exact]).ok
    nan = torch.tensor([float("nan"), 2.0])
    assert compare(["y"], [nan], [nan], [nan]).ok
    assert not compare(["y"], [want], [nan], [nan]).ok
    assert not compare(["y"], [want[:1]], [want], [exact]).ok
    assert not compare(["y"], [want.double()], [want], [exact]).ok
    numbers = torch.tensor([1, 2])
    assert not compare(["y", "n"], [want, numbers + 1], [want, numbers], [exact, numbers]).ok
    assert compare(["n"], [3], [3], [3]).ok


@pytest.mark.parametrize("size", ["99999999999999", "99999999999999999999"])
def test_inputs_beyond_memory_are_refused(model, tmp_path, size):
    done = call("compile", model, "--shape", f"in put=[{size},6]", "-o", tmp_path / "m.dcir", "--json")
    told = json.loads(done.stdout)["error"]
    assert done.exit_code == 2 and "'in put'" in told["message"] and "memory" in told["message"]
