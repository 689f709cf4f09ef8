"""Other ways to run many calls at the same time, to measure next to dcir's streams: each as its documentation has it for throughput."""

from __future__ import annotations

import functools
import importlib
import queue
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dcir.driver.calls.stream_pool import StreamPool
from dcir.driver.calls.team_of_thread import shares
from dcir.driver.measure.baselines import PACKAGES, not_measured
from dcir.driver.measure.models import BenchModel, as_onnx

Burst = Callable[[int], Sequence[Any]]
"""Makes so many calls, several of them at the same time; when all are done, gives the flat results of the last."""


def bursts(
    model: BenchModel, names: Sequence[str], processors: int, folder: Path
) -> tuple[dict[str, tuple[Burst, int]], list[str]]:
    """Bursts by name with how many calls of each run at once, in the order of ``names``; and notes about those that cannot run here.

    Eager PyTorch, inductor and ONNX Runtime have a thread for each processor, pinned as dcir's streams are, and no team. OpenVINO
    chooses its streams (``PERFORMANCE_HINT: THROUGHPUT``).

    Args:
        processors: that all calls have together.
        folder: for an ONNX file, where one must be written.
    """
    made: dict[str, tuple[Burst, int]] = {}
    notes = []
    for name in dict.fromkeys(names):
        try:
            burst, at_once = _START[name](model, processors, folder)
            burst(processors)
            made[name] = burst, at_once
        except Exception as e:  # whatever a rival cannot do is its affair and no reason not to measure the others
            notes.append(not_measured(name, e))
    return made, notes


def _eager(model: BenchModel, processors: int, folder: Path) -> tuple[Burst, int]:
    return _on_threads([lambda: pytree.tree_leaves(model.module(*model.inputs))] * processors), processors


def _inductor(model: BenchModel, processors: int, folder: Path) -> tuple[Burst, int]:
    compiled: Callable[..., Any] = torch.compile(model.module)
    burst = _on_threads([lambda: pytree.tree_leaves(compiled(*model.inputs))] * processors)
    burst(1)  # alone, lest all threads compile
    return burst, processors


def _onnxruntime(model: BenchModel, processors: int, folder: Path) -> tuple[Burst, int]:
    runtime: Any = importlib.import_module(PACKAGES["ort"])
    path, names = as_onnx(model, folder)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = [
        runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]) for _ in range(processors)
    ]
    feed = dict(zip(names, _arrays(model), strict=True))
    return _on_threads([functools.partial(_ran, session, feed) for session in sessions]), processors


def _ran(session: Any, feed: dict[str, Any]) -> Sequence[Any]:
    return list(session.run(None, feed))


def _openvino(model: BenchModel, processors: int, folder: Path) -> tuple[Burst, int]:
    runtime: Any = importlib.import_module(PACKAGES["ov"])
    path, names = as_onnx(model, folder)
    arrays = _arrays(model)
    core = runtime.Core()
    network = core.read_model(str(path))
    network.reshape({name: list(a.shape) for name, a in zip(names, arrays, strict=True)})
    settings = {
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_NUM_THREADS": processors,
        "INFERENCE_PRECISION_HINT": "f32",  # else it computes in bf16 where the processor can
    }
    compiled = core.compile_model(network, "CPU", settings)
    requests = runtime.AsyncInferQueue(compiled)
    last: list[Any] = []
    requests.set_callback(lambda request, _: last.__setitem__(slice(None), [request]))

    def burst(calls: int) -> Sequence[Any]:
        for _ in range(calls):
            requests.start_async(arrays)
        requests.wait_all()
        return [last[0].get_output_tensor(i).data.copy() for i in range(len(compiled.outputs))]

    return burst, int(compiled.get_property("NUM_STREAMS"))


def _on_threads(calls: Sequence[Callable[[], Sequence[Any]]]) -> Burst:
    """As many threads as there are calls; a call is made by one thread at a time."""
    pool = StreamPool(shares(len(calls), 1), 1, "rival")
    free: queue.SimpleQueue[Callable[[], Sequence[Any]]] = queue.SimpleQueue()
    for call in calls:
        free.put(call)

    def one() -> Sequence[Any]:
        call = free.get()
        try:
            return call()
        finally:
            free.put(call)

    def burst(number: int) -> Sequence[Any]:
        futures = [pool.submit(one) for _ in range(number)]
        results: list[Sequence[Any]] = [future.result() for future in futures]
        return results[-1]

    return burst


def _arrays(model: BenchModel) -> list[Any]:
    return [v.detach().numpy() for v in pytree.tree_leaves(model.inputs) if isinstance(v, torch.Tensor)]


_START: dict[str, Callable[[BenchModel, int, Path], tuple[Burst, int]]] = {
    "eager": _eager,
    "inductor": _inductor,
    "ort": _onnxruntime,
    "ov": _openvino,
}
