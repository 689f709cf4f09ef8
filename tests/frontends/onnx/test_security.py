"""Hostile and broken files: each ends in a clear error, runs nothing, reads nothing outside its folder, and soon."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from dcir.errors import DcirError, InvalidModel, Unsupported
from dcir.frontends.onnx import load

SHELL = 'x"); system("touch pwned");//'
PYTHON = "__import__('os').system('touch pwned')"


@pytest.fixture(autouse=True)
def _inside_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    started = time.monotonic()
    yield
    assert not (tmp_path / "pwned").exists()
    assert time.monotonic() - started < 10


def _tensor(dims: list[int], code: int = TensorProto.FLOAT, name: str = "w", **fields: Any) -> TensorProto:
    proto = TensorProto(name=name, data_type=code, dims=dims)
    for key, value in fields.items():
        if isinstance(value, bytes):
            setattr(proto, key, value)
        else:
            getattr(proto, key).extend(value)
    return proto


def _model(
    weights: list[TensorProto] | None = None,
    nodes: list[onnx.NodeProto] | None = None,
    shape: list[Any] | None = None,
    names: tuple[str, str] = ("x", "y"),
    **extra: Any,
) -> onnx.ModelProto:
    x, y = names
    nodes = nodes or [helper.make_node("Add", [x, "w"] if weights else [x, x], [y])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [2] if shape is None else shape)],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)],
        initializer=weights or [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9, **extra)


def _external(location: str, dims: list[int] | None = None, **keys: str) -> TensorProto:
    proto = _tensor(dims or [2])
    proto.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **keys}.items():
        proto.external_data.add(key=key, value=value)
    return proto


def _saved(tmp_path: Path, model: onnx.ModelProto) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


# names and dimensions are data


@pytest.mark.parametrize("name", [PYTHON, "a.b", "a/b", "a_b", "class", "int", "1", "é", "\\", "self", "forward"])
def test_names_are_never_identifiers(name: str) -> None:
    weight = helper.make_tensor(name, TensorProto.FLOAT, [2], [1.0, 2.0])
    nodes = [helper.make_node("Add", ["in " + name, name], ["out " + name], name=name)]
    module = load(_model([weight], nodes, names=("in " + name, "out " + name)))
    assert all(key.isidentifier() and key.isascii() for key in module.state_dict())
    assert all(spec.name.isidentifier() and spec.name.isascii() for spec in module.input_specs)
    assert list(module.original_names.values()) == [name]
    graph = torch.export.export(module, (torch.zeros(2),)).graph_module.code
    assert "touch pwned" not in graph and "system(" not in graph


@pytest.mark.parametrize("name", [SHELL, "a;b", "a\nb", "a`b`"])
def test_names_that_no_exporter_writes_are_refused(name: str) -> None:
    for model in (
        _model(names=(name, "y")),
        _model(names=("x", name)),
        _model([_tensor([2], name="w")], shape=[SHELL]),
    ):
        with pytest.raises(InvalidModel, match="holds the character"):
            load(model)


def test_code_in_a_symbolic_dimension_is_refused() -> None:
    with pytest.raises(InvalidModel, match="a symbolic dimension in the file holds the character"):
        load(_model(shape=[PYTHON]))


def test_names_that_collide_when_cleaned_stay_apart() -> None:
    weights = [
        helper.make_tensor(n, TensorProto.FLOAT, [2], [float(i)] * 2) for i, n in enumerate(["a.b", "a_b", "a/b"])
    ]
    nodes = [
        helper.make_node("Sub", ["x", "a.b"], ["p"]),
        helper.make_node("Mul", ["p", "a_b"], ["q"]),
        helper.make_node("Add", ["q", "a/b"], ["y"]),
    ]
    module = load(_model(weights, nodes))
    assert len(module.state_dict()) == 3
    assert module(torch.tensor([5.0, 6.0])).tolist() == [7.0, 8.0]


def test_symbolic_dimensions_are_never_evaluated() -> None:
    module = load(_model(shape=["floor(a/2) + 1", "__import__(os)"]))
    assert module.input_specs[0].shape == ("d0", "d1")
    assert module.dim_names == {"d0": "floor(a/2) + 1", "d1": "__import__(os)"}
    assert module(torch.ones(1, 1)).tolist() == [[2.0]]


def test_error_messages_quote_names() -> None:
    nodes = [helper.make_node("Add", ["nothing\x1b[2J\n" + "z" * 500, "x"], ["y"])]
    with pytest.raises(InvalidModel) as caught:
        load(_model(nodes=nodes))
    assert "\x1b" not in str(caught.value) and "z" * 100 not in str(caught.value)


# tensors


@pytest.mark.parametrize(
    "weight",
    [
        _tensor([2], raw_data=b"\0" * 7),
        _tensor([2], raw_data=b"\0" * 9),
        _tensor([2]),
        _tensor([-2], float_data=[1.0, 2.0]),
        _tensor([-1, -2], raw_data=b"\0" * 8),
        _tensor([2], float_data=[1.0]),
        _tensor([2], float_data=[1.0] * 3),
        _tensor([2], int32_data=[1, 2]),
        _tensor([2], raw_data=b"\0" * 8, float_data=[1.0, 2.0]),
        _tensor([2**62, 4], raw_data=b"\0" * 8),
        _tensor([2**32, 2**32], raw_data=b""),
        _tensor([1] * 1000, raw_data=b"\0" * 4),
        _tensor([2], TensorProto.INT8, int32_data=[1, 300]),
        _tensor([2], TensorProto.FLOAT16, int32_data=[1, -1]),
        _tensor([2], TensorProto.UINT32, uint64_data=[1, 2**40]),
        _tensor([3], TensorProto.INT4, raw_data=b"\0"),
        _tensor([2], 99, raw_data=b"\0" * 8),
        _tensor([2], 0, raw_data=b"\0" * 8),
    ],
)
def test_inconsistent_tensors(weight: TensorProto) -> None:
    with pytest.raises(InvalidModel):
        load(_model([weight]))


def test_strings_are_refused_by_operators_on_numbers() -> None:
    with pytest.raises(InvalidModel, match=r"tensor\(string\)") as caught:
        load(_model([_tensor([1], TensorProto.STRING, string_data=[b"a"])]))
    assert caught.value.where == "Add"


@pytest.mark.parametrize("fields", [
    {"string_data": [b"a", b"b"]}, {"string_data": [b"\xff\xfe"]}, {"string_data": []}, {"raw_data": b"a"},
    {"string_data": [b"a"], "int32_data": [1]},
])  # fmt: skip
def test_inconsistent_strings(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidModel):
        load(_model([_tensor([1], TensorProto.STRING, **fields)]))


@pytest.mark.parametrize(
    ("dims", "indices", "index_dims"),
    [([4], [5], [1]), ([4], [-1], [1]), ([2, 2], [0, 2], [1, 2]), ([4], [0, 1], [2]), ([2**31, 2**31], [0], [1])],
)
def test_sparse_tensors_are_checked(dims: list[int], indices: list[int], index_dims: list[int]) -> None:
    model = _model()
    sparse = model.graph.sparse_initializer.add(dims=dims)
    sparse.values.CopyFrom(helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0]))
    sparse.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, index_dims, indices))
    with pytest.raises(InvalidModel):
        load(model)


def test_sparse_tensor_becomes_dense() -> None:
    model = _model(nodes=[helper.make_node("Add", ["x", "s"], ["y"])], shape=[2, 2])
    sparse = model.graph.sparse_initializer.add(dims=[2, 2])
    sparse.values.CopyFrom(helper.make_tensor("s", TensorProto.FLOAT, [2], [1.0, 2.0]))
    sparse.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [2, 2], [0, 1, 1, 0]))
    assert load(model)(torch.zeros(2, 2)).tolist() == [[0.0, 1.0], [2.0, 0.0]]


# external data


def test_external_data_is_read_below_the_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(b"junk" + np.array([1, 2], np.float32).tobytes())
    path = _saved(tmp_path, _model([_external("data/w.bin", offset="4", length="8")]))
    assert load(path)(torch.zeros(2)).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "location",
    ["../secret.bin", "a/../../secret.bin", "/etc/passwd", "../../etc/passwd", "./w.bin", "", "missing.bin",
     "w.bin\0.txt", "a\\..\\w.bin", "C:w.bin", ".", "a//w.bin"],
)  # fmt: skip
def test_external_data_elsewhere_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"\0" * 8)
    (folder / "w.bin").write_bytes(b"\0" * 8)
    with pytest.raises(InvalidModel):
        load(_saved(folder, _model([_external(location)])))


@pytest.mark.parametrize("kind", ["symlink", "parent", "hardlink", "fifo", "folder"])
def test_external_data_through_links_is_refused(tmp_path: Path, kind: str) -> None:
    folder, outside = tmp_path / "model", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "w.bin").write_bytes(b"\0" * 8)
    location = "sub/w.bin" if kind == "parent" else "w.bin"
    if kind == "symlink":
        (folder / "w.bin").symlink_to(outside / "w.bin")
    elif kind == "parent":
        (folder / "sub").symlink_to(outside)
    elif kind == "hardlink":
        os.link(outside / "w.bin", folder / "w.bin")
    elif kind == "fifo":
        os.mkfifo(folder / "w.bin")
    else:
        (folder / "w.bin").mkdir()
    with pytest.raises(InvalidModel):
        load(_saved(folder, _model([_external(location)])))


@pytest.mark.parametrize(
    "keys",
    [{"length": "4"}, {"length": "9999999999"}, {"offset": "1"}, {"offset": "-8"}, {"offset": "0x0"}, {"length": "8 "},
     {"offset": "9" * 30}, {"offset": "８"}],
)  # fmt: skip
def test_external_data_with_wrong_numbers_is_refused(tmp_path: Path, keys: dict[str, str]) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 8)
    with pytest.raises(InvalidModel):
        load(_saved(tmp_path, _model([_external("w.bin", **keys)])))


def test_external_data_of_an_attribute_is_checked_too(tmp_path: Path) -> None:
    node = helper.make_node("Constant", [], ["c"])
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(_external("../../etc/passwd"))
    with pytest.raises(InvalidModel):
        load(_saved(tmp_path, _model(nodes=[node, helper.make_node("Add", ["x", "c"], ["y"])])))


def test_external_data_without_a_folder_is_refused() -> None:
    with pytest.raises(InvalidModel, match="external"):
        load(_model([_external("w.bin")]))


# files


@pytest.mark.parametrize("keep", [0, 1, 10, 60, -1])
def test_truncated_files(tmp_path: Path, keep: int) -> None:
    whole = _model([helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])]).SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(whole[:keep])
    with pytest.raises(DcirError):
        load(path)


@pytest.mark.parametrize("seed", range(20))
def test_garbage(tmp_path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    whole = bytearray(_model([helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])]).SerializeToString())
    for place in generator.integers(0, len(whole), 6):
        whole[place] = int(generator.integers(0, 256))
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(whole))
    with contextlib.suppress(DcirError):
        load(path)(torch.zeros(2))


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "device", "noise", "nul"])
def test_files_that_are_no_models(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.onnx"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "noise":
        path.write_bytes(np.random.default_rng(0).bytes(4096))
    elif kind == "nul":
        path = Path("a\0b")
    with pytest.raises(InvalidModel):
        load(path)


# graphs


def _bad_graphs() -> dict[str, onnx.ModelProto]:
    relu, add = helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Add", ["x", "x"], ["y"])
    twice = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    cases = {
        "cycle": _model(
            nodes=[helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"]), relu]
        ),
        "itself": _model(nodes=[helper.make_node("Add", ["x", "y"], ["y"])]),
        "missing name": _model(nodes=[helper.make_node("Add", ["x", "nowhere"], ["y"])]),
        "one name, two values": _model(nodes=[relu, add]),
        "name of an input made again": _model(nodes=[helper.make_node("Relu", ["x"], ["x"]), relu]),
        "initializer twice": _model([twice, twice]),
        "output nobody makes": _model(nodes=[helper.make_node("Relu", ["x"], ["z"])]),
        "too few operands": _model(nodes=[helper.make_node("Add", ["x"], ["y"])]),
        "empty operand": _model(nodes=[helper.make_node("Add", ["x", ""], ["y"])]),
        "unknown attribute": _model(nodes=[helper.make_node("Relu", ["x"], ["y"], strength=3)]),
        "attribute of another type": _model(nodes=[helper.make_node("Flatten", ["x"], ["y"], axis="one")]),
        "attribute missing": _model(nodes=[helper.make_node("Cast", ["x"], ["y"])]),
        "negative dimension": _model(shape=[-3]),
        "rank of a thousand": _model(shape=[1] * 1000),
    }
    unknown = _model()
    del unknown.opset_import[:]
    cases["no operator set"] = unknown
    contradiction = _model()
    contradiction.opset_import.append(helper.make_opsetid("", 12))
    cases["two operator sets"] = contradiction
    cases["domain not imported"] = _model(nodes=[helper.make_node("Add", ["x", "x"], ["y"], domain="other")])
    both = helper.make_node("Cast", ["x"], ["y"], to=1)
    both.attribute.append(both.attribute[0])
    cases["attribute twice"] = _model(nodes=[both])
    return cases


BAD = _bad_graphs()


@pytest.mark.parametrize("kind", sorted(BAD))
def test_bad_graphs(kind: str) -> None:
    with pytest.raises(InvalidModel):
        load(BAD[kind])


def test_unknown_operators_and_newer_operator_sets_are_refused() -> None:
    with pytest.raises(Unsupported):
        load(_model(nodes=[helper.make_node(SHELL, ["x"], ["y"])]))
    model = _model()
    model.opset_import[0].version = 9999
    with pytest.raises(Unsupported):
        load(model)


@pytest.mark.parametrize("place", ["name", "op_type", "input", "domain"])
def test_text_that_is_not_utf8(tmp_path: Path, place: str) -> None:
    value = "MARKER"
    model = _model(nodes=[helper.make_node("Add", ["x", "x"], ["y"], name="n")])
    if place == "input":
        model.graph.node[0].input[0] = value
    else:
        setattr(model.graph.node[0], place, value)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(b"MARKER", b"\xff\xfe\xffKER"))
    with contextlib.suppress(DcirError):
        load(path)


def test_too_many_nodes() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])] * 200_001
    with pytest.raises(InvalidModel, match="200000"):
        load(_model(nodes=nodes))


def _calls(levels: int, width: int, *, last: str) -> onnx.ModelProto:
    """Functions f0 … each calling the next `width` times; the last calls `last`."""
    sets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    functions = []
    for level in range(levels):
        callee, domain = (f"f{level + 1}", "own") if level + 1 < levels else (last, "own" if last != "Relu" else "")
        names = ["a", *(f"t{i}" for i in range(width))]
        nodes = [helper.make_node(callee, [names[i]], [names[i + 1]], domain=domain) for i in range(width)]
        functions.append(helper.make_function("own", f"f{level}", ["a"], [names[-1]], nodes, sets))
    model = _model(nodes=[helper.make_node("f0", ["x"], ["y"], domain="own")])
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.extend(functions)
    return model


def test_functions_that_explode_or_recur_are_refused() -> None:
    assert load(_calls(3, 2, last="Relu"))(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
    with pytest.raises(InvalidModel, match="200000"):
        load(_calls(25, 2, last="Relu"))
    with pytest.raises(InvalidModel, match="calls itself"):
        load(_calls(3, 1, last="f0"))
    with pytest.raises(InvalidModel, match="deeper"):
        load(_calls(60, 1, last="Relu"))


def test_deeply_nested_subgraphs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Protocol buffers stop at about 33 levels themselves, so the limit is lowered to be met first.
    monkeypatch.setattr("dcir.frontends.onnx.build.MAX_NESTING", 6)

    def nested(depth: int) -> onnx.ModelProto:
        node = helper.make_node("Relu", ["x"], ["r0"])
        for level in range(1, depth):
            graph = helper.make_graph([node], "n", [], [helper.make_tensor_value_info(f"r{level - 1}", 1, None)])
            name = "y" if level == depth - 1 else f"r{level}"
            node = helper.make_node("If", ["c"], [name], then_branch=graph, else_branch=graph)
        condition = helper.make_tensor("c", TensorProto.BOOL, [], [True])
        return _model([condition], [node])

    assert load(nested(4))(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
    with pytest.raises(InvalidModel, match="deeper"):
        load(nested(10))


def _constant(name: str, values: list[int]) -> onnx.NodeProto:
    return helper.make_node(
        "Constant", [], [name], value=helper.make_tensor("", TensorProto.INT64, [len(values)], values)
    )


@pytest.mark.parametrize("dims", [[2**40], [2**31, 2**31, 2**31], [-5], [2**62, 2**62]])
@pytest.mark.parametrize("operator", ["ConstantOfShape", "Expand", "Tile"])
def test_huge_fills_fail_without_memory(dims: list[int], operator: str) -> None:
    inputs = ["s"] if operator == "ConstantOfShape" else ["z", "s"]
    shape = [1] * len(dims)
    zero = helper.make_tensor("z", TensorProto.FLOAT, shape, [0.0])
    nodes = [_constant("s", dims), helper.make_node(operator, inputs, ["f"]), helper.make_node("Size", ["f"], ["y"])]
    with pytest.raises(DcirError):
        load(_model([zero], nodes))(torch.zeros(2))


def test_a_chain_that_doubles_a_constant_is_not_folded() -> None:
    nodes = [_constant("c0", [1] * 64)]
    nodes += [helper.make_node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(36)]
    nodes.append(helper.make_node("Relu", ["x"], ["y"]))
    module = load(_model(nodes=nodes))
    assert module(torch.ones(2)).tolist() == [1.0, 1.0]


def test_towers_of_powers_do_not_hang() -> None:
    nodes = [
        _constant("n", [9]),
        helper.make_node("Pow", ["n", "n"], ["p"]),
        helper.make_node("Pow", ["n", "p"], ["q"]),
    ]
    nodes += [helper.make_node("ConstantOfShape", ["q"], ["f"]), helper.make_node("Add", ["x", "f"], ["y"])]
    with pytest.raises(DcirError):
        load(_model(nodes=nodes))(torch.zeros(2))


@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_the_smallest_integer_by_minus_one_does_not_trap(operator: str, module_of: Callable[..., Any]) -> None:
    module = module_of(f"g (int32[N] a, int32[N] b) => (int32[N] y) {{ y = {operator}(a, b) }}")
    a, b = torch.tensor([-(2**31), 7], dtype=torch.int32), torch.tensor([-1, -2], dtype=torch.int32)
    assert module(a, b).tolist() == {"Div": [-(2**31), -3], "Mod": [0, -1]}[operator]
    with pytest.raises(DcirError):
        module(a, torch.zeros(2, dtype=torch.int32))


@pytest.mark.parametrize("index", [-4, 3, 2**40])
def test_indices_out_of_range(module_of: Callable[..., Any], index: int) -> None:
    module = module_of("g (float[3] x, int64[1] i) => (float[1] y) { y = Gather(x, i) }")
    with pytest.raises(DcirError):
        module(torch.zeros(3), torch.tensor([index]))


def test_a_cut_off_reduction_of_zero_trips(module_of: Callable[..., Any]) -> None:
    module = module_of("g (float[N] x) => (float[1] y) { y = ReduceSum <keepdims = 1> (x) }")
    assert module(torch.zeros(0)).tolist() == [0.0]
