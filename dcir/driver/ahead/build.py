"""One ATen graph to code for a file: a library that is not loaded here, of constant sizes or for all within bounds."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import fx

from dcir.codegen.compile import Library
from dcir.driver.compile import Compilation
from dcir.driver.session import Session
from dcir.errors import OptionError
from dcir.frontends.torch.context import GraphContext
from dcir.frontends.torch.importer import Imported
from dcir.targets import DEFAULT

if TYPE_CHECKING:
    from dcir.driver.moving_graph import MovingGraph


def build(session: Session, gm: fx.GraphModule, context: GraphContext) -> tuple[Imported, Library]:
    """Compile one ATen graph to a library.

    Raises:
        OptionError: no file holds code of this target.
    """
    made = _compilation(session, context)
    made.device = _device_of(gm)
    return made.built(gm)


def build_imported(session: Session, done: Imported) -> tuple[Imported, Library]:
    """Compile a graph that is imported already, and rewrite it in place.

    Raises:
        OptionError: no file holds code of this target.
    """
    return _compilation(session, GraphContext()).built_imported(done)


def build_moving(session: Session, gm: fx.GraphModule, context: GraphContext) -> tuple[MovingGraph, Library]:
    """Compile one ATen graph to a library for all sizes within the bounds of its context.

    Raises:
        Unsupported: there is none, or something is asked for that belongs to constant sizes.
        OptionError: no file holds code of this target.
    """
    return _compilation(session, context).built_moving(gm)


def _device_of(gm: fx.GraphModule) -> str:
    """The kind of device that a graph was captured on: code for a GPU can be made where there is none."""
    kept = itertools.chain(gm.parameters(), gm.buffers(), (n.meta.get("val") for n in gm.graph.nodes))
    return "cuda" if any(isinstance(t, torch.Tensor) and t.is_cuda for t in kept) else "cpu"


def _compilation(session: Session, context: GraphContext) -> Compilation:
    made = Compilation(session, context)
    if not made.target.saves:
        raise OptionError(
            f"a compiled file holds code of targets {DEFAULT!r} and 'cuda' only",
            where=f"target={session.options.target!r}",
            hint=f"dcir.optimize(model, target={session.options.target!r}) runs it in this process",
        )
    if session.options.record_function:
        raise OptionError(
            "a compiled file tells torch's profiler of calls alone", where="record_function=True",
            hint="dcir.optimize(model, record_function=True) runs it in this process",
        )  # fmt: skip
    return made
