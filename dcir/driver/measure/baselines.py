"""Other ways to run a model, to measure next to dcir: eager PyTorch, inductor, ONNX Runtime, OpenVINO."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dcir.driver.measure.models import BenchModel, as_onnx
from dcir.errors import OptionError

Run = Callable[[], Sequence[Any]]
"""One call; gives the flat results."""

PACKAGES = {"ort": "onnxruntime", "ov": "openvino"}
WRITER = "onnxscript"
"""With what PyTorch writes an ONNX file; the extra ``bench`` of dcir brings it."""
BASELINES = ("eager", "inductor", *PACKAGES)


def check_names(names: Sequence[str]) -> None:
    """Refuse baselines that nobody knows.

    Raises:
        OptionError: there is one.
    """
    for name in names:
        if name not in BASELINES:
            raise OptionError(f"nothing known about {name!r}", where="--against", hint="one of " + ", ".join(BASELINES))


def baselines(model: BenchModel, names: Sequence[str], threads: int, folder: Path) -> tuple[dict[str, Run], list[str]]:
    """Calls by name, in the order of ``names``; and notes about those that cannot run here.

    Args:
        threads: for runtimes with a pool of their own; PyTorch's is set by the caller.
        folder: for an ONNX file, where one must be written; it must stay as long as the calls are used.
    """
    runs: dict[str, Run] = {}
    notes = []
    for name in dict.fromkeys(names):
        if name == "eager":
            runs[name] = _eager(model.module, model.inputs)
            continue
        try:
            run = _START[name](model, threads, folder)
            run()
            runs[name] = run
        except Exception as e:  # whatever a rival cannot do is its affair and no reason not to measure the others
            notes.append(not_measured(name, e))
    return runs, notes


def not_measured(name: str, error: Exception) -> str:
    """Why a baseline is left out."""
    if isinstance(error, ImportError):
        missing = PACKAGES.get(name, "") if error.name in (None, PACKAGES.get(name)) else error.name
        role = ", which PyTorch writes the model with," if missing == WRITER else ""
        return f"{name} is not measured: {missing}{role} is not installed; pip install {missing}"
    return f"{name} is not measured: {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


def opened_runtime(
    name: str, path: str, threads: int, shapes: Mapping[str, Sequence[int]] | None = None
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What runs an ONNX file in ONNX Runtime ("ort") or OpenVINO ("ov"): from arrays in the order of the file to flat results.

    Args:
        shapes: of all inputs, where they stay as they are; a runtime may make use of it.

    Raises:
        ImportError: it is not installed.
    """
    # By name: what dcir does never stands on its baselines, and this way no checker has to make an exception.
    runtime = importlib.import_module(PACKAGES[name])
    return (_onnxruntime if name == "ort" else _openvino)(runtime, path, threads, shapes)


def _eager(module: Callable[..., Any], inputs: Sequence[Any]) -> Run:
    return lambda: pytree.tree_leaves(module(*inputs))


def _inductor(model: BenchModel, threads: int, folder: Path) -> Run:
    return _eager(torch.compile(model.module), model.inputs)


def _runtime(name: str, model: BenchModel, threads: int, folder: Path) -> Run:
    importlib.import_module(PACKAGES[name])  # before a file is written for what is not there
    path, names = as_onnx(model, folder)
    arrays = [v.detach().numpy() for v in pytree.tree_leaves(model.inputs) if isinstance(v, torch.Tensor)]
    shapes = {n: a.shape for n, a in zip(names, arrays, strict=True)}
    run = opened_runtime(name, str(path), threads, shapes)
    return lambda: run(arrays)


def _onnxruntime(runtime: Any, path: str, threads: int, shapes: object) -> Callable[[Sequence[Any]], Sequence[Any]]:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda arrays: list(session.run(None, dict(zip(names, arrays, strict=True))))


def _openvino(
    runtime: Any, path: str, threads: int, shapes: Mapping[str, Sequence[int]] | None
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        # Else it computes in bf16 where the processor can.
        "INFERENCE_PRECISION_HINT": "f32",
    }
    core = runtime.Core()
    network = core.read_model(path)
    if shapes is not None:
        network.reshape({name: list(shape) for name, shape in shapes.items()})
    compiled = core.compile_model(network, "CPU", settings)
    request = compiled.create_infer_request()
    outputs = list(range(len(compiled.outputs)))

    def run(arrays: Sequence[Any]) -> Sequence[Any]:
        results = request.infer(list(arrays))
        return [results[i] for i in outputs]

    return run


_START: dict[str, Callable[[BenchModel, int, Path], Run]] = {
    "inductor": _inductor,
    **{name: functools.partial(_runtime, name) for name in PACKAGES},
}
