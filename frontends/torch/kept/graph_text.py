"""A graph as text, Dynamo's or that of a training step, which is equal in two processes where AOTAutograd and dcir make the same of it.

Everything that they read is in it: operators and their constants, the form of every argument and where it is from, what is known of sizes
that move, and where the user's program has each operator. Values of tensors are not, nor are the sizes that moving ones have just now.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from types import BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses import FakeTensor

from dcir.frontends.torch.kept.descriptions import Unkept
from dcir.frontends.torch.kept.unguarded import unseen_code
from dcir.frontends.torch.shapes.conditions import asked_numbers
from dcir.ir.origins import frames_of

_NUMBERS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
_NATIVE = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
_META = ("custom", "recompute")
"""What notes of a node say that a program or its report shows."""


def graph_text(gm: fx.GraphModule, args: Sequence[Any]) -> Iterator[str]:
    """The rows of a graph and of the arguments that it is traced for.

    Raises:
        Unkept: something in it cannot be written down.
    """
    memories = [x.untyped_storage()._cdata for x in args if isinstance(x, torch.Tensor)]
    if len(set(memories)) < len(memories):
        raise Unkept("arguments share memory")
    yield from _text(gm, args)


def step_text(gm: fx.GraphModule) -> Iterator[str]:
    """The rows of the ATen graph of a training step, which reads and writes each of its tensors by itself.

    Raises:
        Unkept: something in it cannot be written down.
    """
    yield from _text(gm, [place.meta["val"] for place in gm.graph.find_nodes(op="placeholder")])


def _text(gm: fx.GraphModule, args: Sequence[Any]) -> Iterator[str]:
    unseen = unseen_code(gm)
    if unseen is not None:
        raise Unkept(unseen)
    if next(gm.parameters(), None) is not None or next(gm.buffers(), None) is not None:
        raise Unkept("the graph holds tensors of its own")
    yield from _graph(gm)
    places = gm.graph.find_nodes(op="placeholder")
    yield from _arguments(places, args)
    yield from _sizes(args)
    yield from _scalars(gm)


def _graph(gm: fx.GraphModule) -> Iterator[str]:
    numbers: dict[fx.Node, int] = {}
    for node in gm.graph.nodes:
        numbers[node] = len(numbers)
        if node.op in ("placeholder", "output", "call_method"):
            target = str(node.target)
        elif node.op == "call_function":
            target = _function(node.target)
        elif node.op == "get_attr" and isinstance(part := gm.get_submodule(str(node.target)), fx.GraphModule):
            yield f"part {node.target} ("
            yield from _graph(part)
            yield ")"
            target = str(node.target)
        else:
            raise Unkept(f"the graph has a {node.op} of {node.target}")
        yield f"{node.name} {node.op} {target} {_value(node.args, numbers)} {_value(node.kwargs, numbers)} {_notes(node)}"


def _notes(node: fx.Node) -> str:
    """What a node says of where it is from, and how it is to be treated."""
    if node.meta.get("unbacked_bindings"):
        raise Unkept("the graph has sizes that depend on values")
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    modules = [(path, getattr(cls, "__qualname__", str(cls))) for path, cls in stack.values()]
    # The function is left out: the outermost is dcir's own, with a number in its name.
    lines = [(frame.file, frame.line, frame.code) for frame in frames_of(node.meta.get("stack_trace") or "")]
    return f"{modules} {lines} {[_value(node.meta.get(name), {}) for name in _META]}"


def _value(value: Any, numbers: dict[fx.Node, int]) -> str:
    """A constant, or a node's number."""
    kind = type(value)
    if isinstance(value, fx.Node):
        return f"%{numbers[value]}"
    if kind in _NUMBERS:
        return f"{kind.__name__} {value!r}"
    if kind in (tuple, list, torch.Size) or isinstance(value, fx.immutable_collections.immutable_list):
        # Written alike on purpose: which of them a graph has is not kept by fx itself.
        return f"[{', '.join(_value(v, numbers) for v in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_value(k, numbers)}: {_value(v, numbers)}' for k, v in value.items())}}}"
    if kind is slice:
        return f"slice({_value(value.start, numbers)}, {_value(value.stop, numbers)}, {_value(value.step, numbers)})"
    if isinstance(value, _NAMED):
        return str(value)
    if isinstance(value, Enum) and kind.__module__.partition(".")[0] == "torch":
        return f"{kind.__qualname__}.{value.name}"
    if isinstance(value, _SYMBOLIC):
        return f"{kind.__name__} {value.node.expr}"
    raise Unkept(f"the graph has a {kind.__qualname__} in it")


def _function(target: Any) -> str:
    """The name of a function, by which another process finds the same one (``unguarded`` says whose they are)."""
    if isinstance(target, OpOverload | OpOverloadPacket):
        return f"operator {target}"
    if isinstance(target, HigherOrderOperator):
        return f"higher {target.name()}"
    module, name = getattr(target, "__module__", None), getattr(target, "__name__", "")
    if isinstance(target, _NATIVE) and module is None:
        owner = target.__objclass__ if not isinstance(target, BuiltinFunctionType) else target.__self__
        return f"native {getattr(owner, '__module__', '')}.{getattr(owner, '__qualname__', getattr(owner, '__name__', ''))}.{name}"
    found: Any = sys.modules.get(str(module))
    for part in getattr(target, "__qualname__", name).split("."):
        found = getattr(found, part, None)
    if found is not target and getattr(sys.modules.get(str(module)), name, None) is not target:
        raise Unkept(f"it calls {module}.{name}, which is not found by its name")
    return f"function {module}.{name}"


def _arguments(places: Sequence[fx.Node], args: Sequence[Any]) -> Iterator[str]:
    for place, value in zip(places, args, strict=True):
        argument = place.meta.get("grapharg")
        source = getattr(getattr(argument, "source", None), "name", None)
        marks = {k: v for k, v in (place.meta.get("tensor_dict") or {}).items() if type(v) in _NUMBERS}
        known = f"{source} {getattr(argument, 'pass_arg_as_tensor', None)} {sorted(marks.items())}"
        if not isinstance(value, torch.Tensor):
            yield f"{known} {_value(value, {})}"
            continue
        yield f"{known} {_tensor(value)}"


def _tensor(value: torch.Tensor) -> str:
    if type(value) not in _CLASSES or value.layout is not torch.strided or value.is_nested:
        raise Unkept(f"an argument is a {type(value).__qualname__} of its own form")
    numbers = [_value(n, {}) for n in (*value.shape, *value.stride(), value.storage_offset())]
    flags = (
        isinstance(value, torch.nn.Parameter), value.requires_grad, value.is_leaf, value.is_conj(), value.is_neg(), value.is_inference(),
        value._is_view(), value._base is not None and value._base.requires_grad, getattr(value, "_dynamo_static_input_type", None),
        value._backward_hooks is not None,
    )  # fmt: skip
    return f"{value.dtype} {value.device} {value.dim()} {numbers} {flags}"


def _sizes(args: Sequence[Any]) -> Iterator[str]:
    """What Dynamo knows of the sizes that move."""
    environments = {n.node.shape_env for x in args for n in _numbers_of(x) if isinstance(n, _SYMBOLIC)}
    if len(environments) > 1:
        raise Unkept("its sizes are of several traces")
    for environment in environments:
        if environment.deferred_runtime_asserts or environment.unbacked_renamings:
            raise Unkept("it has sizes that depend on values")
        for symbol, span in environment.var_to_range.items():
            sources = [source.name for source in environment.var_to_sources.get(symbol, ())]
            yield f"{symbol} {span} {environment.replacements.get(symbol)} {sources}"
        for guard in environment.guards:
            place = getattr(getattr(guard, "sloc", None), "framework_loc", None)
            yield f"{guard.expr} {getattr(place, 'name', '')} {getattr(guard, 'size_oblivious', False)}"


def _scalars(gm: fx.GraphModule) -> Iterator[str]:
    """What Dynamo has asked of numbers that are no sizes: they are constants where it knows their values."""
    values = [node.meta.get("example_value") for node in gm.graph.nodes]
    environments = {value.node.shape_env for value in values if isinstance(value, _SYMBOLIC)}
    for environment in environments:
        yield from asked_numbers(environment)


def _numbers_of(x: Any) -> tuple[Any, ...]:
    return (*x.shape, *x.stride(), x.storage_offset()) if isinstance(x, torch.Tensor) else (x,)
