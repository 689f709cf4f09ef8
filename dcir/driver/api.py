"""What the command line and ``dcir.load`` call: files in, models, reports and comparisons out."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from dcir.codegen.cpp.toolchain import cpu_identity
from dcir.destination import check_destination, check_replaced
from dcir.driver.ahead.artefact import Compiled, write_artefact
from dcir.driver.ahead.compile import compile_module, compile_onnx, is_artefact
from dcir.driver.ahead.compile_sizes import Bounds, compile_file_for_sizes, compile_for_sizes, dimensions_of
from dcir.driver.ahead.sized_artefact import write_sized_artefact
from dcir.driver.example_call import example_arguments
from dcir.driver.measure.machine import rates
from dcir.driver.optimize import optimize
from dcir.driver.record import GraphRecord
from dcir.driver.session import Progress, Session
from dcir.driver.verify.check_model_file import answerable, lasting
from dcir.errors import ArtefactInvalid, InvalidInput, OptionError
from dcir.frontends import onnx as onnx_front_end
from dcir.ir.origins import Origins
from dcir.options import Options
from dcir.report.explain import Report
from dcir.report.remarks import Remarks
from dcir.runtime.artefact import load_artefact, read_report
from dcir.targets import target_class

if TYPE_CHECKING:
    from dcir.driver.verify.bisect import Bisection
    from dcir.driver.verify.compare import Comparison

Shapes = Mapping[str, Sequence[int | str]]


def load(path: str | os.PathLike[str], **options: Any) -> nn.Module:
    """A module from an ONNX file or a .dcir file.

    Args:
        path: An ONNX file is data: it is checked, and becomes a trainable module that is compiled on its first call.
            A .dcir file holds machine code and must be trusted like a program; it becomes a module that is ready to
            run, forward only.
        options: as in ``dcir.optimize``; a .dcir file takes none.

    Raises:
        InvalidModel: the ONNX file is broken or hostile.
        ArtefactInvalid: the .dcir file is broken, or made by another version or for another processor.
        OptionError: an unknown option, or options for a .dcir file.
    """
    if not is_artefact(path):
        module: nn.Module = optimize(onnx_front_end.load(path), **options)
        return module
    if options:
        raise OptionError(
            "a .dcir file is compiled already and takes no options",
            where=", ".join(f"{k}={v!r}" for k, v in options.items()),
            hint="compile the model again with them",
        )
    return load_artefact(path, identity=cpu_identity())


def save(
    module: nn.Module | torch.export.ExportedProgram,
    inputs: Sequence[Any] | torch.Tensor,
    path: str | os.PathLike[str],
    *,
    named: Mapping[str, Any] | None = None,
    arch: Sequence[str] = (),
    **options: Any,
) -> Report:
    """Compile the forward pass of a module and write it as a .dcir file: for the shapes of one example call, or for sizes within bounds.

    Args:
        module: in the mode to compile, which should be eval mode.
        inputs, named: arguments of the example call, a tensor alone being the only one; values that are no tensors are fixed.
        path: the file to write.
        arch: with ``target="cuda"``, the GPUs that the file is for (["sm_80", "sm_90a"]), none of which need be here; else the one at hand.
        options: as in ``dcir.optimize``; ``dynamic={input: {dimension: Dim(name, min=..., max=...)}}`` says which sizes may
            differ from those of the example. A batch alone runs in pieces where the model does the same to every image; everything
            else has one program for all sizes, or, where that cannot be, one for each, up to ``shape_limit``.

    Returns:
        What was done.

    Raises:
        InvalidInput: the arguments are no tuple, or no file can be written to the path.
        Unsupported: the forward pass cannot be captured as one graph, or sizes within the bounds take too many programs.
        OptionError: sizes without bounds, or of inputs that are not there; or an architecture that is none, or of another target.
    """
    check_destination(path)
    check_replaced(path)
    inputs = example_arguments(inputs)
    session = Session(Options.make(**options), architectures=tuple(arch))
    session.options.refuse_streams("a .dcir file")
    dynamic = session.options.dynamic
    if not dynamic:
        compiled = compile_module(module, inputs, session, named)
        report = Report(session.graphs)
        write_artefact(path, compiled, lasting(report))
        return report
    if dynamic is True or not isinstance(module, nn.Module):
        raise OptionError(
            "a compiled file wants a module, and names and bounds of the sizes that may change",
            where=f"dynamic={dynamic!r}",
            hint='dynamic={"x": {0: torch.export.Dim("batch", min=1, max=64)}}',
        )
    _check_sizes(session.options)
    dimensions = dimensions_of(module, inputs, named or {}, dynamic)
    sized = compile_for_sizes(module, inputs, session, dimensions, named)
    report = Report(session.graphs)
    write_sized_artefact(path, sized, lasting(report))
    return report


def compile_file(
    model: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    level: int = 4,
    target: str = "cpp",
    shapes: Shapes | None = None,
    threads: int | None = None,
    until: str | None = None,
    strict: bool = False,
    verify: str = "off",
    bounds: Bounds | None = None,
    arch: Sequence[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Compile an ONNX file to a .dcir file; see ``dcir compile --help`` for the options."""
    check_destination(destination, *(() if is_artefact(model) else (model,)))  # one that is compiled is refused as that
    check_replaced(destination)
    options = Options.make(level=level, target=target, threads=threads, until=until, strict=strict, verify=verify)
    if bounds:
        _check_sizes(options)
        session = Session(options, progress=progress, architectures=tuple(arch))
        sized = compile_file_for_sizes(_open_onnx(model, shapes), session, bounds)
        report = Report(session.graphs, machine=rates())
        write_sized_artefact(destination, sized, lasting(report))
        return report
    compiled, report = _compile_onnx(model, options, shapes, progress, tuple(arch))
    write_artefact(destination, compiled, lasting(report))
    return report


def _check_sizes(options: Options) -> None:
    """Refuse a file for several sizes where a target has none.

    Raises:
        OptionError: it has not.
    """
    if not target_class(options.target).saves_sizes:
        raise OptionError(
            f"a compiled file of target {options.target!r} is for one size", where=f"target={options.target!r}",
            hint="leave out dynamic and --bound, and write a file for each size",
        )  # fmt: skip


def explain_file(
    model: str | os.PathLike[str],
    *,
    level: int = 4,
    target: str = "cpp",
    shapes: Shapes | None = None,
    strict: bool = False,
    remarks: bool = False,
    about: Mapping[str, str | None] | None = None,
    skip: Sequence[str] = (),
) -> Report:
    """What was done to a .dcir file when it was compiled, or what is done to an ONNX file.

    Args:
        model, level, target, shapes, strict: as for ``compile_file``.
        remarks: whether to show what passes say of each place.
        about: which remarks, as ``report.remarks.Remarks.where`` takes it.
        skip: places that are switched off.

    Raises:
        OptionError: remarks or other places are asked for of a .dcir file.
    """
    if not is_artefact(model):
        options = Options.make(level=level, target=target, strict=strict, remarks=remarks, skip=tuple(skip))
        report = _compile_onnx(model, options, shapes)[1]
        if remarks:
            report.remarks = Remarks.of(report.graphs).where(**(about or {}))
        return report
    if remarks or skip:
        raise OptionError("a .dcir file holds no remarks", where=str(model), hint="dcir explain MODEL.onnx --remarks")
    return _report_of(read_report(model), model)


def model_explorer_file(
    model: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    level: int = 4,
    target: str = "cpp",
    shapes: Shapes | None = None,
    strict: bool = False,
    skip: Sequence[str] = (),
) -> Report:
    """Write the network of an ONNX file after all passes as a JSON file for Model Explorer; what was done to it.

    Raises:
        InvalidInput: a .dcir file, which holds no network.
    """
    from dcir.report.model_explorer import collection

    found: list[tuple[str, Any]] = []
    session = Session(Options.make(level=level, target=target, strict=strict, skip=tuple(skip)))
    session.on_rewritten = lambda kind, net: found.append((kind, net))
    compile_onnx(_open_onnx(model, shapes), session)
    label = f"{os.path.basename(os.fspath(model))} -O{level}"
    Path(destination).write_text(json.dumps(collection(label, found), indent=1) + "\n", encoding="utf-8")
    return Report(session.graphs, machine=rates())


def run_file(
    model: str | os.PathLike[str], inputs: Mapping[str, np.ndarray[Any, Any]] | Sequence[np.ndarray[Any, Any]]
) -> dict[str, np.ndarray[Any, Any]]:
    """The results of a model by name, from arrays by name or in order; bf16 results are widened to float32."""
    module: Any = load(model)
    if is_artefact(model):
        known = {spec.name: spec.name for spec in module.dcir.inputs}
        names = list(module.dcir.outputs)
    else:
        known = {}
        for spec in module.input_specs:
            known |= {spec.name: spec.name, spec.original: spec.name}
        names = [spec.original for spec in module.output_specs]
    with torch.no_grad():
        if isinstance(inputs, Mapping):
            out = module(**{known.get(name, name): _tensor(array) for name, array in inputs.items()})
        else:
            out = module(*map(_tensor, inputs))
    leaves = pytree.tree_leaves(out)
    return {name: _array(value) for name, value in zip(names, leaves, strict=True) if isinstance(value, torch.Tensor)}


def check_file(model: str | os.PathLike[str], **settings: Any) -> Comparison:
    """Compare a compiled ONNX file with PyTorch; see ``driver.check_file``."""
    from dcir.driver.verify.check_model_file import check_file as check

    return check(model, **settings)


def bisect_file(
    model: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    level: int = 4,
    seed: int = 0,
    shapes: Shapes | None = None,
) -> Bisection:
    """Find what changes the numbers of an ONNX file on seeded random inputs; see ``driver.bisect.bisect_graph``.

    Raises:
        InvalidInput: a .dcir file, which holds no graph to bisect.
    """
    from dcir.driver.verify.bisect import bisect_graph
    from dcir.driver.verify.slices import slice_of
    from dcir.frontends.torch.export import export_inference

    if is_artefact(model):
        raise InvalidInput("a .dcir file holds no PyTorch model to compare with", hint="dcir check --bisect MODEL.onnx")
    module = onnx_front_end.load(model, shapes=shapes).eval()
    inputs, _ = answerable(module, seed)
    exported = export_inference(module, inputs)
    part, values = slice_of(exported.graph, [s.tensor for s in exported.state], inputs)
    return bisect_graph(part, values, Options.make(level=level), destination, seed=seed)


@dataclass(frozen=True)
class PassInfo:
    """A pass as `dcir passes` shows it; ``origin`` is "dcir", or the package that registered it."""

    name: str
    tier: int
    summary: str
    options: dict[str, Any]
    origin: str = "dcir"


def list_passes(level: int) -> list[PassInfo]:
    """The passes of a level in order."""
    from dcir.transforms.pipelines import pipeline
    from dcir.transforms.registered import origin_of

    return [
        PassInfo(p.name, p.tier, p.summary, {f.name: getattr(p, f.name) for f in dataclasses.fields(p)}, origin_of(p))
        for p in pipeline(level)
    ]


def _compile_onnx(
    model: str | os.PathLike[str],
    options: Options,
    shapes: Shapes | None,
    progress: Progress | None = None,
    arch: tuple[str, ...] = (),
) -> tuple[Compiled, Report]:
    session = Session(options, progress=progress, architectures=arch)
    compiled = compile_onnx(_open_onnx(model, shapes), session)
    return compiled, Report(session.graphs, machine=rates(), skip=options.skip)


def _open_onnx(model: str | os.PathLike[str], shapes: Shapes | None) -> onnx_front_end.OnnxModule:
    if is_artefact(model):
        raise InvalidInput("this is a .dcir file, which is compiled already", where=str(model), hint="dcir explain")
    return onnx_front_end.load(model, shapes=shapes)


def _report_of(data: Mapping[str, Any], path: str | os.PathLike[str]) -> Report:
    """A report from what ``lasting`` left of it."""
    from dcir.transforms.runner import PassRecord

    try:
        graphs = []
        for graph in data["graphs"]:
            passes = [PassRecord(**record, seconds=0.0) for record in graph["passes"]]
            fallbacks = [(str(what), str(where)) for what, where in graph["fallbacks"]]
            origins = Origins.from_json(graph.get("origins", {"places": [], "stacks": []}))
            rows = [
                (str(k), str(what), int(n), tuple(map(int, of))) for k, what, n, of in graph.get("kernel_origins", [])
            ]
            read = {"passes": passes, "fallbacks": fallbacks, "origins": origins, "kernel_origins": rows}
            graphs.append(GraphRecord(**(graph | read)))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ArtefactInvalid("the report in the file is broken", where=str(path)) from error
    return Report(graphs, machine=rates())


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    try:
        here = array.astype(
            array.dtype.newbyteorder("="), order="C", copy=False
        )  # a file may have the other order of bytes
        return torch.from_numpy(here)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"an array of type {array.dtype} is no input of a network") from error


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    array: np.ndarray[Any, Any] = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return array
