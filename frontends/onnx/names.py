"""Names in a file: kept apart from all code, and refused where no exporter would write them.

Names and symbolic dimensions never become identifiers, expressions or text of generated code, so any of them would be
harmless here. A name that carries quotation marks or statement ends is written for some other tool's harm, though, and
a file that tries is not worth trusting in the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from onnx import GraphProto, ModelProto, NodeProto

from dcir.errors import InvalidModel
from dcir.frontends.onnx.tensors import show

_NAME = re.compile(r"[\x00-\x1f\x7f\";`]")
_DIMENSION = re.compile(r"[\x00-\x1f\x7f\"';`\\]")


def check_names(model: ModelProto) -> None:
    """Look at every name and symbolic dimension of a model.

    Raises:
        InvalidModel: a name holds a quotation mark, a semicolon, a backtick or a control character.
    """
    nodes: list[NodeProto] = []
    graphs: list[GraphProto] = [model.graph]
    for function in model.functions:
        _check((function.name, *function.input, *function.output), _NAME, "a name")
        nodes.extend(function.node)
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            _check(_graph_names(graph), _NAME, "a name")
            _check(_dimensions(graph), _DIMENSION, "a symbolic dimension")
            nodes.extend(graph.node)
            continue
        node = nodes.pop()
        _check((node.name, *node.input, *node.output), _NAME, "a name")
        for attribute in node.attribute:
            if attribute.HasField("g"):
                graphs.append(attribute.g)
            graphs.extend(attribute.graphs)


def _graph_names(graph: GraphProto) -> Iterator[str]:
    yield graph.name
    yield from (value.name for value in (*graph.input, *graph.output, *graph.value_info))
    yield from (tensor.name for tensor in graph.initializer)


def _dimensions(graph: GraphProto) -> Iterator[str]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield from (d.dim_param for d in value.type.tensor_type.shape.dim)


def _check(names: Iterable[str], bad: re.Pattern[str], what: str) -> None:
    for name in names:
        found = bad.search(name)
        if found is not None:
            raise InvalidModel(
                f"{what} in the file holds the character {found.group()!r}",
                where=show(name),
                hint="export the model again; names are letters, digits and marks such as _ . / :",
            )
