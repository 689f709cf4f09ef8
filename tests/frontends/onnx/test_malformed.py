"""Files with something wrong about one node: an error that names it, or the right result; never another exception.

Every valid one-node model of ONNX's suite is changed in some forty ways (`mutate.py`). A share of the mutants runs in each
session, another one for each commit; `DCIR_TEST_ALL` runs all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from onnx.reference import ReferenceEvaluator

import dcir
from dcir.cli.main import main
from dcir.errors import DcirError, InvalidInput, InvalidModel, TypeMismatch
from dcir.frontends.onnx import load
from dcir.onnx_backend import Backend
from tests.frontends.onnx.mutate import Mutant, mutants, valid
from tests.rotation import chosen

ORIGINS = valid()
RANDOM = {
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}
ENDLESS = {"Loop: without operand 0"}
"""A loop with neither count nor condition runs for ever: that is what it says."""

AGAINST_THE_TEXT = ("ConvTranspose: output_shape = ",)
"""ONNX's evaluator takes paddings for 0 there; the text has them computed of the shape."""
DIFFERENT = {
    "Attention: qk_matmul_output_mode = 0": "the evaluator's has the cap; the operator's function has the product itself",
    "Attention: without qk_matmul_output_mode": "which is 0 then",
    "DynamicQuantizeLinear: operand 0 as a scalar": "the text's scale of a range of 0 is 0",
    "GlobalMaxPool: operand 0 with a dimension more": "the evaluator keeps the third dimension",
    "Loop: operand 2 with a dimension more": "the evaluator joins results of rounds that the text stacks",
    "Resize: extrapolation_value = inf": "the evaluator has the largest number for it",
    "ReverseSequence: operand 1 with -1 at 3": "no length",
    "TfIdfVectorizer: max_skip_count = 4611686018427387904": "the evaluator goes through all skips one by one",
    "ai.onnx.ml.TreeEnsemble: post_transform = 1": "the evaluator leaves soft-max out",
    "ai.onnx.preview.FlexAttention: scale = -1.0": "the evaluator takes its root",
}
"""Whose results are not compared with the evaluator's, and why."""


@pytest.fixture(autouse=True)
def _clean_dynamo() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def _all() -> list[Mutant]:
    every = [m for origin in ORIGINS.values() for m in mutants(origin) if str(m) not in ENDLESS]
    return [m for m in every if m.name != "Loop" or "operand 0 with 4611" not in m.change]


def _complaint(mutant: Mutant, **options: Any) -> str | None:
    """What is wrong with how a mutant is dealt with."""
    try:
        results = Backend.prepare(mutant.model, **options).run(list(mutant.inputs))
    except DcirError as error:
        given = error.where is not None and error.hint is not None
        return None if given or "array of objects" in error.message else f"{mutant}: not all of three parts: {error}"
    except Exception as error:
        return f"{mutant}: {type(error).__name__}: {error}"
    if mutant.name in RANDOM or str(mutant) in DIFFERENT or str(mutant).startswith(AGAINST_THE_TEXT):
        return None
    wanted = _reference(mutant)
    if wanted is None or all(_close(w, r) for w, r in zip(wanted, results, strict=True)):
        return None
    return f"{mutant}: another result than ONNX's reference"


def _reference(mutant: Mutant) -> list[Any] | None:
    """Results of ONNX's own evaluator; None where it fails, which is its way to refuse."""
    names = [value.name for value in mutant.model.graph.input]
    given = {name: np.asarray(value) for name, value in zip(names, mutant.inputs, strict=True)}
    try:
        with np.errstate(all="ignore"):
            return list(ReferenceEvaluator(mutant.model).run(None, given))
    except Exception:
        return None


def _close(want: Any, have: Any) -> bool:
    if isinstance(want, list):
        return len(want) == len(have) and all(map(_close, want, have))
    want, have = np.asarray(want), np.asarray(have)
    if want.dtype.kind in "OUS":
        return want.shape == have.shape and bool((want == have).all())
    if want.shape != have.shape or want.dtype != have.dtype:
        return False
    plain = want.dtype.kind in "biufc"
    want, have = (want, have) if plain else (want.astype(np.float32), have.astype(np.float32))
    return np.allclose(want, have, rtol=1e-2, atol=1e-3, equal_nan=True)


def test_mutants_run_or_are_refused_by_name() -> None:
    every = {str(mutant): mutant for mutant in _all()}
    complaints = [text for name in chosen(every, 600) if (text := _complaint(every[name], eager=True))]
    assert not complaints, "\n".join(complaints)


def test_compiled_mutants_run_or_are_refused_by_name() -> None:
    every = {str(mutant): mutant for mutant in _all() if mutant.name not in _SLOW}
    complaints = [text for name in chosen(every, 10) if (text := _complaint(every[name]))]
    assert not complaints, "\n".join(complaints)


def test_what_a_tracer_runs_into_has_all_three_parts() -> None:
    """The operator raises while Dynamo follows it, where nobody stands beside to say where and what to try."""
    trees = [m for m in mutants(ORIGINS["ai.onnx.ml.TreeEnsemble"]) if m.change == "nodes_falsenodeids = [2, 2, 9]"]
    with pytest.raises(InvalidModel, match="a branch leads to a node that is not there") as caught:
        Backend.prepare(trees[0].model).run(list(trees[0].inputs))
    assert (caught.value.where, bool(caught.value.hint)) == ("TreeEnsemble", True)


_SLOW = {"Loop", "Scan"}
"""Compiled, a number of rounds that is one too large is unrolled."""

BAD = {
    "a permutation that names an axis twice": ("y = Transpose <perm = [0, 0]> (x)", InvalidModel, "'perm' is [0, 0]"),
    "negative paddings of a convolution": (
        "w = Constant <value = float[1, 1, 1] {1}> () a = Unsqueeze(x, zero) y = Conv <pads = [-1, 0]> (a, w)",
        InvalidModel, "'pads' is [-1, 0]",
    ),
    "paddings that cut off more than there is": ("p = Constant <value_ints = [0, -5, 0, 0]> () y = Pad(x, p)",
                                                 InvalidModel, "'pads' is [0, -5, 0, 0]"),
    "a shape of other elements": ("s = Constant <value_ints = [4, 2]> () y = Reshape(x, s)", InvalidInput, "[4, 2]"),
    "an axis beyond the rank": ("y = Concat <axis = 7> (x, x)", InvalidModel, "'axis' is 7"),
    "an index beyond the axis": ("i = Constant <value_ints = [0, 9]> () y = Gather(x, i)", InvalidModel, "[0, 9]"),
    "lengths that do not add up": ("n = Constant <value_ints = [1, 7]> () y, z = Split(x, n)", InvalidModel, "'split'"),
    "a step of zero": ("o = Constant <value_ints = [1]> () y = Slice(x, zero, o, zero, zero)", InvalidModel, "step"),
    "an axis squeezed that is not 1": ("y = Squeeze(x, zero)", InvalidModel, "'axes'"),
    "a reduction over an axis twice": ("o = Constant <value_ints = [0, -2]> () y = ReduceSum(x, o)", InvalidModel,
                                       "'axes' is [0, -2]"),
    "more than there is": ("k = Constant <value_ints = [9]> () y, z = TopK(x, k)", InvalidModel, "'k' is 9"),
    "foreign characters in an equation": ('y = Einsum <equation = "ij,jk;import os->ik"> (x, x)', InvalidModel, "';'"),
    "a word that the attribute does not know": ('y = Pad <mode = "mirror"> (x, zero)', InvalidModel, "'mode' is 'mirror'"),
    "a number where a flag belongs": ("y = ReduceSum <keepdims = 7> (x)", InvalidModel, "'keepdims' is 7"),
    "integers where floats belong": ("i = Cast <to = 7> (x) y = Exp(i)", InvalidModel, "tensor(int64)"),
    "two types that must be one": ("i = Cast <to = 7> (x) y = Add(x, i)", InvalidModel, "of one type"),
    "matrices that do not fit": ("y = MatMul(x, x)", InvalidInput, "operand 1"),
    "a slope that does not broadcast": ("s = Constant <value_floats = [1.0, 2.0]> () y = PRelu(x, s)", TypeMismatch, "operand 1"),
}  # fmt: skip


def _file(body: str) -> onnx.ModelProto:
    text = f"""<ir_version: 9, opset_import: ["" : 20]> g (float[2, 3] x) => (float y) {{
        zero = Constant <value_ints = [0]> ()
        {body}
    }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].ClearField("type")
    return model


@pytest.mark.parametrize("name", BAD)
def test_every_door_names_node_and_attribute(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body, kind, said = BAD[name]
    onnx.save(_file(body), tmp_path / "bad.onnx")
    node = (
        body.rpartition("= ")[2]
        if "<" not in body.rpartition(") ")[2]
        else body.rpartition(" <")[0].rpartition("= ")[2]
    )
    operator = node.partition("(")[0].strip()
    found = []
    for door in (load, dcir.load):
        with pytest.raises(kind) as caught, torch.no_grad():
            door(tmp_path / "bad.onnx")(torch.rand(2, 3))
        found.append(caught.value)
    with pytest.raises(kind) as caught:
        dcir.optimize(load(tmp_path / "bad.onnx"))(torch.rand(2, 3))
    for error in (*found, caught.value):
        assert said in str(error)
        assert error.where == operator
        assert error.hint
    outcome = CliRunner().invoke(main, ["compile", str(tmp_path / "bad.onnx"), "--plain", "--json"])
    assert outcome.exit_code == 2
    told = json.loads(outcome.stdout)["error"]
    assert (told["kind"], told["where"]) == (kind.__name__, operator)
    heard = capfd.readouterr()
    assert "Traceback" not in outcome.output + heard.out + heard.err
    assert not list(tmp_path.glob("*.dcir"))


@pytest.mark.parametrize(
    "equation",
    ["ij,jk->ik", "ij,jk", "...ij,...jk->...ik", " i j , j k -> i k ", "ii->i", "ij->", "Ab,bc->Ac", "...->..."],
)
def test_equations_of_the_grammar(equation: str) -> None:
    count = equation.partition("->")[0].count(",") + 1
    names = ", ".join("xy"[:count])
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 20]> g (float[3, 3] x, float[3, 3] y) => (float z) {{
        z = Einsum <equation = "{equation}"> ({names})
    }}""")
    model.graph.output[0].ClearField("type")
    x, y = torch.rand(3, 3), torch.rand(3, 3)
    torch.testing.assert_close(load(model)(x, y), torch.einsum(equation, *(x, y)[:count]))


@pytest.mark.parametrize(
    "equation",
    ["ij,jk->iz", "ij,jk->ii", "ij", "ij,jk,kl->il", "i1,jk->ik", "i..j,jk->ik", "ij,jk->ik->i", "....,jk->jk", "ij,jk->...ik",
     "i\u00e4,jk->ik", "__import__('os'),jk->jk", "ij,jk\n->ik", "ijk,jk->ik"],
)  # fmt: skip
def test_other_texts_are_no_equations(equation: str) -> None:
    node = onnx.helper.make_node("Einsum", ["x", "x"], ["z"], equation=equation)
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 3])
    graph = onnx.helper.make_graph([node], "g", [value], [onnx.ValueInfoProto(name="z")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])
    with pytest.raises((InvalidModel, TypeMismatch)) as caught:
        load(model)(torch.rand(3, 3))
    assert caught.value.where == "Einsum"
    assert "equation" in str(caught.value)
