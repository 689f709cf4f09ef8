"""Compiling ahead of time: a module or an ONNX file, with example inputs, to code that can be written to a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from dcir.codegen.compile import Library
from dcir.driver.ahead.artefact import Compiled, closed
from dcir.driver.ahead.build import build
from dcir.driver.session import Session
from dcir.dynamic import parse_related
from dcir.errors import InvalidInput, Unsupported
from dcir.frontends.onnx import OnnxModule
from dcir.frontends.torch.context import GraphContext
from dcir.frontends.torch.export import Exported, export_inference
from dcir.frontends.torch.importer import Imported
from dcir.ir.moving_network import MovingNetwork
from dcir.ops.torch_types import FROM_NAME, TORCH_TYPES

_ZIP = b"PK\x03\x04"


def is_artefact(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a .dcir file by its first bytes (an ONNX file cannot begin like a zip)."""
    with Path(path).open("rb") as file:
        return file.read(len(_ZIP)) == _ZIP


def compile_module(
    module: nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any],
    session: Session,
    kwargs: Mapping[str, Any] | None = None,
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] = (),
) -> Compiled:
    """Compile the forward pass of ``module`` for the shapes of one example call.

    Args:
        module: in the mode (training or not) to compile.
        args, kwargs: the example call.
        session: options; receives the record of what was done.
        inputs, outputs: names to use instead of those of the captured graph.

    Raises:
        Unsupported: the forward pass writes to its state or cannot be captured as one graph.
    """
    exported = export_inference(module, args, kwargs)
    return compile_exported(exported, closed(exported), session, inputs=inputs, outputs=outputs)


def compile_exported(
    exported: Exported,
    graph: fx.GraphModule,
    session: Session,
    *,
    inputs: Sequence[str] | None,
    outputs: Sequence[str],
    context: GraphContext | None = None,
) -> Compiled:
    """Compile a captured forward pass; ``graph`` is it with its state as attributes."""
    imported, library = build(session, graph, context or GraphContext())
    return named_as_compiled(exported, imported, library, session, inputs=inputs, outputs=outputs)


def named_as_compiled(
    exported: Exported, imported: Imported, library: Library, session: Session, *, inputs: Sequence[str] | None,
    outputs: Sequence[str], moving: MovingNetwork | None = None,
) -> Compiled:  # fmt: skip
    """A captured forward pass and its code, for a file.

    Args:
        moving: the network for all sizes, where ``imported`` is it at the greatest.
        inputs, outputs: names; None are those of the captured graph.
    """
    threads = session.options.threads or torch.get_num_threads()
    return Compiled(
        exported,
        imported,
        library,
        tuple(inputs if inputs is not None else exported.inputs),
        tuple(outputs),
        {"level": session.options.level, "threads": threads},
        moving,
    )


def compile_onnx(module: OnnxModule, session: Session) -> Compiled:
    """Compile an ONNX module; results carry the names of the file."""
    example = example_inputs(module, seed=0)
    return compile_module(
        module.eval(),
        example,
        session,
        inputs=[spec.name for spec in module.input_specs],
        outputs=[spec.original for spec in module.output_specs],
    )


def example_inputs(
    module: OnnxModule, seed: int, bound: int = 2, sizes: Mapping[str, int] | None = None
) -> list[torch.Tensor]:
    """Seeded random inputs: normal floats, integers from 0 up to ``bound``; ``sizes`` of dimensions that the file names, of which others
    follow that are named so, as 2*s + 1.

    Raises:
        InvalidInput: a size is left open in the file, or an input takes more memory than there is.
        Unsupported: an input is no tensor.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for spec in module.input_specs:
        if spec.kind != "tensor" or spec.dtype not in TORCH_TYPES or spec.shape is None:
            raise Unsupported(f"input {spec.original!r} is no tensor of known rank", hint="dcir.load runs it in Python")
        names = [module.dim_names.get(d, d) if isinstance(d, str) else d for d in spec.shape]
        known = [_size_of(d, sizes or {}) if isinstance(d, str) else d for d in names]
        shape = [d for d in known if isinstance(d, int)]
        if len(shape) != len(known):
            shown = ",".join("?" if d is None else str(d) for d in known)
            filled = ",".join(str(d) if isinstance(d, int) else "1" for d in known)
            named = next((d for d in known if isinstance(d, str)), None)
            raise InvalidInput(
                f"the file leaves sizes of input {spec.original!r} open: [{shown}]",
                hint=f"--shape {spec.original}=[{filled}]"
                + (f", or compile with --bound {named}=1..64" if named else ""),
            )
        try:
            tensors.append(random_tensor(shape, TORCH_TYPES[spec.dtype], generator, bound))
        except (RuntimeError, TypeError) as error:  # TypeError: a size beyond 64 bits
            raise InvalidInput(
                f"no input {spec.original!r} of {spec.dtype}[{','.join(map(str, shape))}] can be made: it takes too much memory",
                where="sizes of the inputs", hint=f"--shape {spec.original}=[...] with smaller sizes",
            ) from error  # fmt: skip
    return tensors


def _size_of(name: str, sizes: Mapping[str, int]) -> str | int:
    """The size of a dimension, or its name if that says nothing."""
    related = parse_related(name)
    if name in sizes or related is None or related[0] not in sizes:
        return sizes.get(name, name)
    root, factor, summand = related
    return factor * sizes[root] + summand


def random_tensor(shape: Sequence[int], dtype: str, generator: torch.Generator, bound: int) -> torch.Tensor:
    """A random tensor of one of dcir's element types."""
    kind = FROM_NAME[dtype]
    if kind.is_floating_point and kind.itemsize == 1:  # torch draws none of those
        return torch.randn(tuple(shape), generator=generator).to(kind)
    if kind.is_floating_point or kind.is_complex:
        return torch.randn(tuple(shape), generator=generator, dtype=kind)
    return torch.randint(0, min(bound, 2) if kind is torch.bool else bound, tuple(shape), generator=generator).to(kind)
