"""A model's network in Python's hands: looked at, matched, rewritten, drawn, and made a module again."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dcir.codegen.cpp.toolchain import cpu_identity
from dcir.driver.ahead.artefact import closed, write_artefact
from dcir.driver.ahead.build import build_imported
from dcir.driver.ahead.compile import example_inputs, is_artefact, named_as_compiled
from dcir.driver.example_call import example_arguments
from dcir.driver.session import Session
from dcir.driver.targets.host import host_target
from dcir.driver.verify.check_model_file import lasting
from dcir.errors import InvalidGraph, InvalidInput
from dcir.frontends import onnx as onnx_front_end
from dcir.frontends.torch.context import GraphContext
from dcir.frontends.torch.export import Exported, export_inference
from dcir.frontends.torch.importer import Imported, import_graph
from dcir.ir.dace.nodes import Op
from dcir.ir.dace.open_network import open_network
from dcir.ir.network import Network, Operand
from dcir.ir.operator import Operator
from dcir.ir.refusal import Refusal
from dcir.ir.text import network_text
from dcir.ir.verify import verify
from dcir.options import Options
from dcir.report.explain import Report
from dcir.report.model_explorer import collection
from dcir.runtime.artefact import load_artefact, read_report
from dcir.transforms.base import Pass
from dcir.transforms.open_groups import OpenGroup, groups
from dcir.transforms.runner import PassRecord, run_passes


class Opened:
    """The network of a model's forward pass, without gradients, at the sizes of one call.

    Attributes:
        network: the network, before any pass. Whatever changes it by itself calls ``verify`` afterwards.
        refused: why loop nests were left as they are by the last ``transform``.
    """

    def __init__(
        self, exported: Exported, imported: Imported, inputs: Sequence[str] | None, outputs: Sequence[str]
    ) -> None:
        self._exported, self._imported, self._inputs, self._outputs = exported, imported, inputs, outputs
        self.network: Network = imported.network
        self.network.target = host_target(None)
        self.refused: list[str] = []

    def __str__(self) -> str:
        """The network as text."""
        return network_text(self.network)

    def operators(self, only: str = "") -> list[Op]:
        """Operators in order of execution, those in whose label, description or place in the user's model the expression is found."""
        return [op for op in self.network.ops() if re.search(only, f"{op.label} {op.spec.describe()} {op.origin}")]

    def constants(self) -> dict[str, torch.Tensor]:
        """The tensors of constant containers: parameters and buffers, by the containers' names."""
        return dict(self._imported.constants)

    def apply(self, *passes: Pass) -> list[PassRecord]:
        """Run passes, dcir's, DaCe's (``DaceTransformation``) or your own; what they did.

        Raises:
            InvalidGraph: a pass has left the network invalid.
        """
        return run_passes(self.network, passes)

    def transform(self, edit: Callable[[Any], object], only: str = "") -> int:
        """Change loop nests as maps, with all that DaCe offers.

        Args:
            edit: gets an SDFG of maps, one of each group of loop nests that can be opened together, and changes it in place.
            only: which operators are opened, as in ``operators``.

        Returns:
            How many operators are new.

        Raises:
            InvalidGraph: what ``edit`` has made computes other numbers.
            Unsupported: no loop nests say it.
        """
        wanted, why, count = set(self.operators(only)), list[Refusal](), 0
        for ops in groups(self.network, wanted.__contains__, why.append):
            group = OpenGroup(self.network, ops)
            edit(group.sdfg)
            group.sdfg.validate()
            found = group.pieces(group.sdfg)
            if (different := group.differs(found, group.sdfg)) is not None:
                raise InvalidGraph(f"an edit of maps gives {different.reason}", where=", ".join(op.label for op in ops))
            count += group.put_back(group.sdfg, found, "edit")
        self.refused = [r.reason for r in why]
        self.verify()
        return count

    def replace(
        self, op: Op, spec: Operator, ins: Sequence[Operand] | None = None, outs: Sequence[Operand] | None = None
    ) -> None:
        """Give an operator another spec, and other operands if they differ.

        Raises:
            InvalidGraph: the operands are not what the spec takes.
        """
        net = self.network
        net.rewire(
            op, spec, net.ins(op) if ins is None else ins, net.outs(op) if outs is None else outs, made_by="edit"
        )
        self.verify()

    def verify(self) -> None:
        """Hold the network against dcir's rules and DaCe's.

        Raises:
            InvalidGraph: it breaks one.
        """
        verify(self.network)
        self.network.validate()

    def sdfg(self) -> Any:
        """A new SDFG of maps, tasklets and memlets, loops and branches as regions (see ``ir.dace.open_network``)."""
        return open_network(self.network)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``sdfg()`` as a file that DaCe's viewer opens."""
        self.sdfg().save(os.fspath(path))

    def model_explorer(self) -> dict[str, Any]:
        """The network for Google's Model Explorer, as plain data: ``json.dump`` writes the file that it opens."""
        return collection("network", [("inference", self.network)])

    def compile(self, **options: Any) -> nn.Module:
        """The network through the passes of a level, as a module: forward only, its weights in the state dict under their names.

        Args:
            options: as in ``dcir.optimize``, for constant sizes.
        """
        session = Session(Options.make(**options))
        session.options.refuse_streams("a network that is opened")
        done, library = build_imported(session, replace(self._imported, network=self.network.clone()))
        compiled = named_as_compiled(self._exported, done, library, session, inputs=self._inputs, outputs=self._outputs)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "opened.dcir"
            write_artefact(path, compiled, lasting(Report(session.graphs)))
            return load_artefact(path, identity=cpu_identity(), report=read_report(path))


def open_model(
    model: nn.Module | torch.export.ExportedProgram | str | os.PathLike[str],
    inputs: Sequence[Any] | torch.Tensor | None = None,
    named: Mapping[str, Any] | None = None,
) -> Opened:
    """Open a model.

    Args:
        model: a module in the mode to open, which should be eval mode; or the path of an ONNX file.
        inputs, named: arguments of an example call, whose sizes the network has, a tensor alone being the only one; of a file that
            says its sizes, none.

    Raises:
        InvalidModel: the file is broken or hostile.
        InvalidInput: it is no module; a file leaves sizes open, and no example says them, or is compiled; or the arguments are no tuple.
        Unsupported: the forward pass cannot be captured as one graph.
    """
    names: list[str] | None = None
    outputs: list[str] = []
    if isinstance(model, str | os.PathLike):
        if os.path.isfile(model) and is_artefact(model):
            raise InvalidInput("this is a .dcir file, which is compiled already", where=str(model), hint="dcir explain")
        module = onnx_front_end.load(model)
        inputs = example_inputs(module, seed=0) if inputs is None else inputs
        names = [spec.name for spec in module.input_specs]
        outputs = [spec.original for spec in module.output_specs]
        model = module.eval()
    exported = export_inference(model, () if inputs is None else example_arguments(inputs), named)
    return Opened(exported, import_graph(closed(exported), GraphContext()), names, outputs)
