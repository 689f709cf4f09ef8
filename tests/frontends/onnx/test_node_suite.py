"""ONNX's own operator tests, run eagerly: every case passes, is refused by name, or is on an exact list."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from dcir.errors import Unsupported

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from onnx.backend.test.loader import load_model_tests

    NODE_CASES = {case.name: case for case in load_model_tests(kind="node")}

FILE_CASES = {
    f"{kind}-{case.name}": case
    for kind in ("simple", "pytorch-converted", "pytorch-operator")
    for case in load_model_tests(kind=kind)
}

REFUSED_OPERATORS = {
    "ImageDecoder", "TfIdfVectorizer", "StringSplit", "StringNormalizer", "StringConcat", "LabelEncoder",
    "RegexFullMatch", "TreeEnsemble", "Gradient",
}  # fmt: skip
REFUSED_CASES = {"test_equal_string", "test_equal_string_broadcast"}

RANDOM = {
    "test_bernoulli", "test_bernoulli_double", "test_bernoulli_double_expanded", "test_bernoulli_expanded",
    "test_bernoulli_seed", "test_bernoulli_seed_expanded", "test_training_dropout", "test_training_dropout_default",
    "test_training_dropout_default_mask", "test_training_dropout_mask",
}  # fmt: skip

ROUNDING = {
    # Half precision: torch adds up in float32, the stored results in float16.
    "test_attention_4d_causal_fp16",
    "test_attention_4d_causal_fp16_expanded",
    "test_attention_4d_fp16",
    # The stored result has 2e-7 where the exact one is zero.
    "test_dft_inverse",
    "test_dft_inverse_opset19",
}


def _is_refused(name: str, model: onnx.ModelProto) -> bool:
    return name in REFUSED_CASES or any(node.op_type in REFUSED_OPERATORS for node in model.graph.node)


def _families() -> dict[str, list[str]]:
    families: dict[str, list[str]] = {}
    for name in sorted(set(NODE_CASES) - RANDOM):
        families.setdefault(name.split("_")[1], []).append(name)
    return families


FAMILIES = _families()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_nodes(family: str, run_case: Callable[..., None]) -> None:
    failures = []
    for name in FAMILIES[family]:
        case = NODE_CASES[name]
        assert case.model is not None
        rtol, atol = (2e-3, 1e-6) if name in ROUNDING else (case.rtol, case.atol)
        problem = _problem(name, case.model, case.model, case.data_sets, rtol, atol, run_case)
        failures += [f"{name}: {problem}"] if problem else []
    assert not failures, "\n".join(failures)


def _problem(
    name: str, model: onnx.ModelProto, source: Any, sets: Any, rtol: float, atol: float, run: Callable[..., None]
) -> str | None:
    """What is wrong with one case, or None."""
    try:
        run(source, sets, rtol, atol)
    except Unsupported as error:
        return None if _is_refused(name, model) else f"refused: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "runs, but is on the list of refusals" if _is_refused(name, model) else None


def test_bundled_files(run_case: Callable[..., None]) -> None:
    failures = []
    for name, case in sorted(FILE_CASES.items()):
        folder = Path(case.model_dir or "")
        model = onnx.load(folder / "model.onnx")
        sets = [(_protos(d, "input"), _protos(d, "output")) for d in sorted(folder.glob("test_data_set*"))]
        problem = _problem(name, model, folder / "model.onnx", sets, case.rtol, case.atol, run_case)
        failures += [f"{name}: {problem}"] if problem else []
    assert not failures, "\n".join(failures)


def _protos(folder: Path, kind: str) -> list[onnx.TensorProto]:
    protos = []
    for i in range(len(list(folder.glob(f"{kind}_*.pb")))):
        proto = onnx.TensorProto()
        proto.ParseFromString((folder / f"{kind}_{i}.pb").read_bytes())
        protos.append(proto)
    return protos
