"""ONNX's own backend suite (`onnx.backend.test`): its cases by name, and what is expected of each."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx

from dcir.errors import Unsupported
from dcir.onnx_backend import Backend, PreparedModel

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the stored results of some cases overflow on purpose
    from onnx.backend.test.loader import load_model_tests
    from onnx.backend.test.runner import Runner

EXPECTED = tomllib.loads((Path(__file__).parent / "backend_cases.toml").read_text())
REFUSED: dict[str, str] = {case: row["error"] for row in EXPECTED["refused"] for case in row["cases"]}
RANDOM: list[str] = [case for cases in EXPECTED["random"].values() for case in cases]
ROUNDING: list[str] = [case for cases in EXPECTED["rounding"].values() for case in cases]
DATA: list[str] = [case for cases in EXPECTED["data"].values() for case in cases]


class Eager(Backend):
    """Operator by operator; a refusal is an error instead of a case left out."""

    @classmethod
    def is_compatible(cls, *_: Any, **__: Any) -> bool:
        return True

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        return super().prepare(model, device, eager=True, **kwargs)


class Compiled(Eager):
    """Through dcir's compiler; the runner lets go of what it prepares, so the last one is kept here."""

    prepared: ClassVar[PreparedModel | None] = None

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        Compiled.prepared = Backend.prepare(model, device, **kwargs)
        return Compiled.prepared


class Suite(Runner):  # type: ignore[misc]
    """The official runner, but for a sequence: its own comparison stumbles over elements of rank 0."""

    @classmethod
    def assert_similar_outputs(
        cls, ref_outputs: Any, outputs: Any, rtol: float, atol: float, model_dir: str | None = None
    ) -> None:
        assert len(outputs) == len(ref_outputs)
        for want, have in zip(ref_outputs, outputs, strict=True):
            if isinstance(want, (list, tuple)):
                cls.assert_similar_outputs(want, have, rtol, atol, model_dir)
            elif want is None:
                assert have is None
            else:
                super().assert_similar_outputs([want], [have], rtol, atol, model_dir)
                # The official comparison lets a NumPy float pass for a float16, and the like.
                assert isinstance(have, np.ndarray)
                assert have.dtype == want.dtype


def cases_of(backend: type[Backend]) -> dict[str, Callable[[], None]]:
    """Name of each case on the CPU (without device) to what runs it."""
    found: dict[str, Callable[[], None]] = {}
    for kind in Suite(backend).test_cases.values():
        for name in dir(kind):
            if name.startswith("test_") and name.endswith("_cpu"):
                short = name.removesuffix("_cpu")
                assert short not in found
                found[short] = _bound(getattr(kind, name))
    return found


def _bound(function: Callable[[Any], None]) -> Callable[[], None]:
    return lambda: function(None)


def problem(name: str, run: Callable[[], None]) -> str | None:
    """What is wrong with a case, or None if it does what is expected of it."""
    wanted = REFUSED.get(name)
    try:
        run()
    except Unsupported as error:
        if wanted is None:
            return f"{name}: refused, but not on the list: {error}"
        return None if wanted in str(error) else f"{name}: refused for another reason: {error}"
    except Exception as error:
        return f"{name}: {type(error).__name__}: {error}"
    return None if wanted is None else f"{name}: runs, but is on the list of refusals"


@cache
def node_cases() -> dict[str, Any]:
    """The node cases with their models and data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind="node")}


def is_core(model: onnx.ModelProto) -> bool:
    """Whether a case is about the default domain and about floats, integers and booleans alone."""
    plain = {np.dtype(t) for t in ("f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "?")}
    types = {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}
    known = {onnx.helper.tensor_dtype_to_np_dtype(t) for t in types if t not in (0, onnx.TensorProto.STRING)}
    text = onnx.TensorProto.STRING in types
    tensors = all(v.type.WhichOneof("value") == "tensor_type" for v in (*model.graph.input, *model.graph.output))
    return tensors and not text and known <= plain and not any(node.domain for node in model.graph.node)
