"""Dynamo's sources and conditions on sizes that were read from a file: made anew of their parts, each of which is held to its form.

Dynamo evaluates both as text of Python. So no text is taken over: a source is made again from the fields of its class, and a condition may
only compare and calculate with sizes of what is among the arguments.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from torch._dynamo import source as sources
from torch._dynamo.source import TensorProperty
from torch._guards import Source

from dcir.frontends.torch.kept.descriptions import Unkept

_CALLING = frozenset((
    "RandomValueSource", "CallFunctionNoArgsSource", "WeakRefCallSource", "GlobalWeakRefSource", "FlattenScriptObjectSource",
    "ScriptObjectQualifiedNameSource", "AttrProxySource", "SubclassAttrListSource", "TorchFunctionModeStackSource", "CurrentStreamSource",
    "BackwardStateSource", "ConvertIntSource", "NumpyTensorSource", "FSDPNNModuleSource", "OptimizerSource",
    "ImportSource",
))  # fmt: skip
"""Sources that call what they find, or have no part in traces that are kept."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), TensorProperty)
_ANY_TEXT = frozenset(("index", "local_name", "global_name", "idx"))
"""Fields whose texts Dynamo puts in quotes."""
_ATTRIBUTES = frozenset(("AttrSource", "GenericAttrSource", "ParamBufferSource", "UnspecializedParamBufferSource"))
_NODES = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div,
    ast.FloorDiv, ast.Mod, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot, ast.Load, ast.IfExp,
)  # fmt: skip
_NAMES = frozenset(("L", "G", "max", "min", "abs", "int", "float", "sum", "True", "False", "None"))
_CALLED = frozenset(("max", "min", "abs", "int", "float"))
_PROPERTIES = frozenset(("size", "stride", "storage_offset"))


@functools.cache
def known_sources() -> frozenset[type[Source]]:
    """The classes of sources that a file may name."""
    found = (value for value in vars(sources).values() if isinstance(value, type) and issubclass(value, Source))
    return frozenset(cls for cls in found if cls.__module__ == sources.__name__ and cls.__name__ not in _CALLING)


class Checker:
    """Makes sources again from their parts, each once: what several begin with is one object again.

    Args:
        renamed: gives another one in the place of a part; None where it stays.
    """

    def __init__(self, renamed: Callable[[Source], Source | None] = lambda source: None) -> None:
        self._renamed = renamed
        self._known: dict[int, tuple[Any, Source]] = {}

    def __call__(self, source: Any) -> Any:
        """A source again.

        Raises:
            Unkept: it is none that a trace of ours has.
        """
        known = self._known.get(id(source))
        if known is not None:
            return known[1]
        cls: Any = type(source)
        made = self._renamed(source)
        if made is None:
            if cls not in known_sources():
                raise Unkept(f"a source of the form {cls.__qualname__}")
            made = cls(**{name: self._part(cls, name, getattr(source, name, None)) for name in _fields(cls)})
        self._known[id(source)] = source, made
        return made

    def _part(self, cls: type, name: str, value: Any) -> Any:
        if isinstance(value, Source):
            return self(value)
        if name == "index" and type(value) is tuple:  # a slice, as a source keeps it
            if len(value) == 2 and value[0] is slice and all(type(v) in _PLAIN for v in value[1]):
                return slice(*value[1])
        elif name == "index_is_slice":
            return False  # follows from the index
        elif type(value) is str:
            if name in _ANY_TEXT or cls.__name__ in _ATTRIBUTES or all(map(str.isidentifier, value.split("."))):
                return value
        elif type(value) in _PLAIN:
            return value
        raise Unkept(f"a source with {name}={value!r}")


def checked(source: Any) -> Any:
    """One source again, from its parts.

    Raises:
        Unkept: it is none that a trace of ours has.
    """
    return Checker()(source)


@functools.cache
def _fields(cls: Any) -> tuple[str, ...]:
    """The names of what a source is made of."""
    return tuple(f.name for f in dataclasses.fields(cls) if f.init)


def check_conditions(texts: Any) -> None:
    """See that conditions on sizes are nothing else.

    Raises:
        Unkept: one does more than compare and calculate with sizes.
    """
    for text in texts:
        try:
            tree = ast.parse(text, mode="eval")
        except (SyntaxError, ValueError, TypeError, RecursionError) as e:
            raise Unkept("a condition on sizes that cannot be read") from e
        if not all(map(_calculates, _outside_of_paths(tree))):
            raise Unkept(f"a condition that is not about sizes: {text}")


def _outside_of_paths(tree: ast.AST) -> list[ast.AST]:
    """The nodes of a condition, a path to a value among the arguments as one of them."""
    found, pending = [], [tree]
    while pending:
        node = pending.pop()
        found.append(node)
        if not _is_path(node):
            pending += ast.iter_child_nodes(node)
    return found


def _is_path(node: ast.AST) -> bool:
    """Whether a node looks something up in ``L`` or ``G``, with nothing but attributes, constant keys, and sizes of tensors."""
    while not isinstance(node, ast.Name):
        keyed = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
        if keyed or isinstance(node, ast.Attribute):
            node = node.value  # type: ignore[attr-defined]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _PROPERTIES
            and not node.args
            and not node.keywords
        ):
            node = node.func.value
        else:
            return False
    return node.id in ("L", "G")


def _calculates(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (bool, int, float, type(None))
    if isinstance(node, ast.Name):
        return node.id in _NAMES
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _CALLED and not node.keywords
    return _is_path(node) or isinstance(node, _NODES)
