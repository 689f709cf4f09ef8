"""An ONNX file's results next to PyTorch's: compiled for one call, or for sizes within bounds."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dcir.codegen.cpp.toolchain import cpu_identity
from dcir.driver.ahead.artefact import Compiled, write_artefact
from dcir.driver.ahead.compile import compile_onnx, example_inputs, is_artefact
from dcir.driver.ahead.compile_sizes import Bounds, Sized, compile_file_for_sizes
from dcir.driver.ahead.sized_artefact import write_sized_artefact
from dcir.driver.session import Progress, Session
from dcir.driver.verify.compare import Comparison, compare, in_double
from dcir.errors import InvalidInput
from dcir.frontends import onnx as onnx_front_end
from dcir.frontends.torch.export import export_inference
from dcir.ir.sizes import Bounds as Ends
from dcir.ir.sizes import corners
from dcir.options import Options
from dcir.report.explain import Report
from dcir.runtime.artefact import load_artefact
from dcir.runtime.sized_manifest import Dimension

Shapes = Mapping[str, Sequence[int | str]]

# Above the lower bound, for a size without an upper one: no power of two, of which a batch's pieces are.
_FARTHER = 18
_AT_RANDOM = 4


def check_file(
    model: str | os.PathLike[str],
    *,
    level: int = 4,
    verify: str = "off",
    seed: int = 0,
    shapes: Shapes | None = None,
    bounds: Bounds | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare the compiled ONNX file with PyTorch on seeded random inputs.

    Args:
        model: an ONNX file.
        level, verify: as in ``dcir.optimize``.
        seed: of the inputs.
        shapes: sizes of inputs.
        bounds: of named sizes that may differ from call to call. One file is compiled for all of them, and its results are compared
            at the ends, in the middle and at random sizes, which ``seed`` chooses.
        progress: told of the steps of the compilation.

    Raises:
        InvalidInput: a .dcir file, which holds nothing to compare with.
    """
    if is_artefact(model):
        raise InvalidInput("a .dcir file holds no PyTorch model to compare with", hint="dcir check MODEL.onnx")
    session = Session(Options.make(level=level, verify=verify), progress=progress)
    module = onnx_front_end.load(model, shapes=shapes).eval()
    if bounds:
        sized = compile_file_for_sizes(module, session, bounds)
        calls = _samples(sized.dimensions, seed)
        with opened(sized, Report(session.graphs)) as fast:
            return _worst({_shown(sizes): _compared(module, fast, seed, sizes) for sizes in calls})
    compiled = compile_onnx(module, session)
    with opened(compiled, Report(session.graphs)) as fast:
        return _compared(module, fast, seed, {})


def _compared(module: onnx_front_end.OnnxModule, fast: nn.Module, seed: int, sizes: Mapping[str, int]) -> Comparison:
    inputs, want = answerable(module, seed, sizes)
    got = pytree.tree_leaves(fast(*inputs))
    exported = export_inference(module, inputs)
    exact = in_double(exported.graph, [*(s.tensor for s in exported.state), *inputs])
    return compare([spec.original for spec in module.output_specs], got, want, exact)


def _samples(dimensions: Sequence[Dimension], seed: int) -> list[dict[str, int]]:
    """Sizes to call with: all combinations of ends (of many dimensions the least and the greatest), the middle, one below the upper ends,
    and some at random."""
    ends = {d.name: Ends(d.least, d.least + _FARTHER if d.most is None else d.most) for d in dimensions}
    draw = random.Random(seed)
    rows = corners(ends)
    rows.append({name: (low + high) // 2 for name, (low, high) in ends.items()})
    rows.append({name: max(low, high - 1) for name, (low, high) in ends.items()})
    rows += [{name: draw.randint(*b) for name, b in ends.items()} for _ in range(_AT_RANDOM)]
    return list({tuple(row.values()): row for row in rows}.values())


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _worst(calls: Mapping[str, Comparison]) -> Comparison:
    """One comparison of several calls."""
    worst = max(calls.values(), key=lambda c: (not c.ok, c.error / c.tolerance if c.tolerance else float(c.error > 0)))
    details = {f"{label}: {name}": text for label, c in calls.items() for name, text in c.details.items()}
    return Comparison(all(c.ok for c in calls.values()), worst.error, worst.tolerance, details)


@contextmanager
def opened(compiled: Compiled | Sized, report: Report) -> Iterator[nn.Module]:
    """A compiled network by way of a temporary file, so that what runs is what a file would hold."""
    with tempfile.TemporaryDirectory(prefix="dcir-") as folder:
        path = Path(folder) / "model.dcir"
        if isinstance(compiled, Sized):
            write_sized_artefact(path, compiled, lasting(report))
        else:
            write_artefact(path, compiled, lasting(report))
        yield load_artefact(path, identity=cpu_identity())


def answerable(
    module: onnx_front_end.OnnxModule, seed: int, sizes: Mapping[str, int] | None = None
) -> tuple[list[torch.Tensor], list[Any]]:
    """Random inputs that the model answers, and PyTorch's answers: large indices first, small ones if it refuses."""
    for bound in (100, 10, 2, 1):
        inputs = example_inputs(module, seed, bound, sizes)
        try:
            with torch.no_grad():
                return inputs, pytree.tree_leaves(module.eval()(*inputs))
        except Exception:
            if bound == 1:
                raise
    raise AssertionError("unreachable")


def lasting(report: Report) -> dict[str, Any]:
    """The report without what differs from one compilation to the next, or follows from the rest; of source files names and lines alone."""
    data = report.to_json()
    for graph, whole in zip(data["graphs"], report.graphs, strict=True):
        for name in ("seconds", "generated", "flops", "floor_seconds", "peak_bytes", "together", "partition", "key"):
            graph.pop(name, None)
        graph["kernel_origins"], graph["origins"] = whole.kernel_origins, whole.origins.public().to_json()
        for record in graph["passes"]:
            record.pop("seconds", None)
    return data
