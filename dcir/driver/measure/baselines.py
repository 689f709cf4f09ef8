"""Other ways to run a model, to measure next to dcir: eager PyTorch, inductor, ONNX Runtime, OpenVINO."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
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
        except ImportError as e:
            missing = PACKAGES.get(name, "") if e.name in (None, PACKAGES.get(name)) else e.name
            role = ", which PyTorch writes the model with," if missing == WRITER else ""
            notes.append(f"{name} is not measured: {missing}{role} is not installed; pip install {missing}")
        except Exception as e:  # whatever a rival cannot do is its affair and no reason not to measure the others
            notes.append(
                f"{name} is not measured: {type(e).__name__}: {(str(e).strip().splitlines() or [''])[0][:200]}"
            )
    return runs, notes


def _eager(module: Callable[..., Any], inputs: Sequence[Any]) -> Run:
    return lambda: pytree.tree_leaves(module(*inputs))


def _inductor(model: BenchModel, threads: int, folder: Path) -> Run:
    return _eager(torch.compile(model.module), model.inputs)


def _feed(model: BenchModel, names: Sequence[str]) -> dict[str, Any]:
    tensors = [v for v in pytree.tree_leaves(model.inputs) if isinstance(v, torch.Tensor)]
    return {name: t.detach().numpy() for name, t in zip(names, tensors, strict=True)}


def _onnxruntime(model: BenchModel, threads: int, folder: Path) -> Run:
    # By name: what dcir does never stands on its baselines, and this way no checker has to make an exception.
    onnxruntime = importlib.import_module("onnxruntime")
    path, names = as_onnx(model, folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = _feed(model, names)
    return lambda: list(session.run(None, feed))


def _openvino(model: BenchModel, threads: int, folder: Path) -> Run:
    openvino = importlib.import_module("openvino")
    path, names = as_onnx(model, folder)
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        # Else it computes in bf16 where the processor can.
        "INFERENCE_PRECISION_HINT": "f32",
    }
    core = openvino.Core()
    feed = _feed(model, names)
    network = core.read_model(str(path))
    network.reshape({name: list(array.shape) for name, array in feed.items()})
    compiled = core.compile_model(network, "CPU", settings)
    request = compiled.create_infer_request()
    outputs = list(range(len(compiled.outputs)))

    def run() -> Sequence[Any]:
        results = request.infer(feed)
        return [results[i] for i in outputs]

    return run


_START = {"inductor": _inductor, "ort": _onnxruntime, "ov": _openvino}
