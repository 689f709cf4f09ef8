"""Where a node of a file stands, for reports: name, operator, operator set and file, and what its exporter wrote of the model before it.

    node 12 "/layer1/conv1/Conv" of net.onnx   -->   module layer1.conv1, /layer1/conv1/Conv (Conv, net.onnx:12)

All of it is text of the file's author: cut short, without characters that steer a terminal, shown as it is, and no part of any code.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from onnx import NodeProto

from dcir.frontends.onnx.tensors import printable
from dcir.ir.origins import Frame, frames_of, note_of

_LONGEST = 200
_LONGEST_TRACE = 20_000
_MOST_FRAMES = 24
_LAST_LINE = 10**7
_SCOPE = re.compile(r"'([^'\\]*)'")
_TORCHS_OWN = re.compile(r"[\\/](?:site|dist)-packages[\\/]torch[\\/]")
_SCOPES, _TRACE = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.stack_trace"
"""What torch's exporter writes: names of modules from the outermost, the node's own last; lines of Python as Python prints them."""


@dataclass(frozen=True)
class NodeOrigin:
    """A place in a file: a node, or what surrounds nodes.

    Attributes:
        file: name of the file without folders.
        name: of the node, behind those of the nodes that call its function or hold its graph.
        module: path of the module that it belongs to, as ``named_modules`` has it, as far as names or the exporter tell.
        python: lines of the model that was exported.
        nodes: the node, behind those that call its function or hold its graph, as lines of the file; numbers count from 0 in each graph.
        operator: its operator.
    """

    file: str
    name: str = ""
    module: str = ""
    python: tuple[Frame, ...] = ()
    nodes: tuple[Frame, ...] = ()
    operator: str = ""

    @classmethod
    def of_file(cls, path: str | None) -> NodeOrigin:
        """The outermost graph of a file; None: of a model given as an object."""
        return cls("model" if path is None else short(os.path.basename(path)))

    def inside(self, graph: str) -> NodeOrigin:
        """A graph that the node holds, by the attribute's name; its nodes come below it."""
        return replace(self, name=f"{self.name}/{short(graph)}" if self.name else short(graph))

    def at(self, proto: NodeProto, number: int, version: int | None) -> NodeOrigin:
        """A node of the graph or function that this is.

        Args:
            number: its place among the graph's nodes.
            version: of the operator set that holds for it; None where there is none.
        """
        operator = short(proto.op_type)
        own = short(proto.name) or f"{operator}_{number}"
        domain = short(proto.domain) or "ai.onnx"
        told = {p.key: p.value for p in proto.metadata_props if p.key in (_SCOPES, _TRACE)}
        line = f"{operator} {own}, {domain}" + (f" opset {version}" if version is not None else "")
        name = f"{self.name}/{own.lstrip('/')}" if self.name else own
        return NodeOrigin(
            self.file, name, _module(told) or self.module or _module_of_name(name), _python(told) or self.python,
            (*self.nodes, Frame(self.within, number, "", line)), operator,
        )  # fmt: skip

    @property
    def within(self) -> str:
        """The file, and the number of the node, behind those of the nodes around it."""
        return ":".join([self.file, *(str(f.line) for f in self.nodes)])

    @property
    def title(self) -> str:
        """What the node is called in reports."""
        return f"{self.name} ({self.operator}, {self.within})"

    @property
    def note(self) -> str:
        """What a tracer is told of it."""
        return note_of(self.title, self.module, (*self.python, *self.nodes))


def short(text: str) -> str:
    """A text of the file in one line that can be shown; the end of a long one is left out."""
    return printable(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")


def _module(told: Mapping[str, str]) -> str:
    scopes = _SCOPE.findall(told.get(_SCOPES, "")[:_LONGEST_TRACE])
    return short(scopes[-2]) if len(scopes) > 1 else ""


def _module_of_name(name: str) -> str:
    """Exporters write paths as names: ``/layer1/layer1.0/conv1/Conv``, a module's own name with that of the one around it or without."""
    path, last = list[str](), ""
    for part in name.strip("/").split("/")[:-1]:
        own = part.removeprefix(f"{last}.") if last else part
        path += [own] if own else []
        last = part
    return ".".join(path)


def _python(told: Mapping[str, str]) -> tuple[Frame, ...]:
    """The lines of a stack without folders, which are somebody else's, and without torch's own."""
    try:
        found = frames_of(told.get(_TRACE, "")[:_LONGEST_TRACE])
    except ValueError:
        return ()
    users = [f for f in found if not _TORCHS_OWN.search(f.file) and f.line < _LAST_LINE]
    return tuple(
        Frame(short(re.split(r"[\\/]", f.file)[-1]), f.line, short(f.function), short(f.code))
        for f in users[-_MOST_FRAMES:]
    )
