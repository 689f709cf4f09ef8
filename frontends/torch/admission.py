"""Which of Dynamo's graphs are compiled: tensors on other devices are refused by name, other forms of storage left to PyTorch.

Everything that a graph is given passes here, whichever door it came through: arguments, parameters and buffers, by the names that
they have for the user. What a graph makes itself is looked at by the importer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dcir.errors import DcirError, InvalidInput, Unsupported
from dcir.ops.reach import device, elsewhere, of_unknown_type, otherwise_stored, out_of_reach, without_values

_ARGUMENT = re.compile(r"L\['args'\]\[(\d+)\]|L\['kwargs'\]\['(\w+)'\]|L\['(\w+)'\]")
_MODULE = re.compile(r"^L\['(?:fn'\]\.__self__|self'\])")
_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")
_WHERE = {
    "cpu": "compiled code runs on this machine's CPU: tensor.cpu(), model.cpu(); or target='cuda' for tensors on a GPU",
    "cuda": "compiled code runs on the GPU: tensor.cuda(), model.cuda()",
}
_PLAIN = "plain tensors on the CPU: tensor.cpu(), tensor.to_dense(), model.cpu()"
_REAL = "trace the model itself, not what was made of it to run"
_KNOWN_TYPE = "another type: tensor.to(torch.int64), model.float()"


@dataclass(frozen=True)
class Named:
    """A tensor that a graph or a call is given.

    Attributes:
        name: for the user.
        own: whether it is a parameter or buffer.
    """

    name: str
    own: bool
    tensor: torch.Tensor

    def error(self, what: str, hint: str) -> DcirError:
        """That it cannot be used, being ``what``."""
        if self.own:
            return Unsupported(f"the model's {self.name} is {what}", where=self.name, hint=hint)
        return InvalidInput(f"input {self.name} is {what}", where=self.name, hint=hint)


def argument_name(source: str, inputs: Sequence[str]) -> str:
    """An argument as the user would write it, from Dynamo's text; ``inputs`` are names of the positional ones."""

    def shown(m: re.Match[str]) -> str:
        if m[1] is None:
            return m[2] or m[3]
        return inputs[int(m[1])] if int(m[1]) < len(inputs) else f"args[{m[1]}]"

    return _ARGUMENT.sub(shown, source)


def check_graph(gm: fx.GraphModule, inputs: Sequence[str]) -> str | None:
    """Look at everything that a graph of Dynamo is given.

    Returns:
        Why PyTorch has to run it; None if it can be compiled.

    Raises:
        InvalidInput, Unsupported: a tensor is on another device, has no values, or is of a type that has no code.
    """
    given = list(_given(gm, inputs))
    refuse(given)
    for t in given:
        for part in _parts(t.tensor):
            what = otherwise_stored(part)
            if what is not None:
                return f"{t.name} is {what}"
    if device() != "cpu" and (places := several_devices(_values(gm))):
        return f"its tensors are on several devices: {', '.join(places)}"
    for t in given:
        what = next(filter(None, map(of_unknown_type, _parts(t.tensor))), None)
        if what is not None:
            raise t.error(what, _KNOWN_TYPE)
    return None


def several_devices(tensors: Iterable[torch.Tensor]) -> list[str]:
    """The devices that tensors are on, if these are several; a program runs on one. Numbers of the CPU's go with any."""
    found = {str(t.device) for t in tensors if t.device.type != "cpu"}
    return sorted(found) if len(found) > 1 else []


def _values(gm: fx.GraphModule) -> Iterator[torch.Tensor]:
    """Every tensor of a graph, as Dynamo has traced it."""
    for node in gm.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("example_value")):
            if isinstance(value, torch.Tensor):
                yield value


def of_unknown_size(gm: fx.GraphModule) -> str | None:
    """Which higher-order operator has a result whose size only data tell (``while_loop_stack_output``); None if none has."""
    for node in gm.graph.nodes:
        if not isinstance(node.target, torch._ops.HigherOrderOperator):
            continue
        for value in pytree.tree_leaves(node.meta.get("example_value")):
            if isinstance(value, torch.Tensor) and free_unbacked_symbols(value):
                return f"a result of {node.target} is of a size that depends on data"
    return None


def refuse(tensors: Iterable[Named]) -> None:
    """Raise an error that names the first tensor that no program can be given.

    Raises:
        InvalidInput, Unsupported: it is on another device, or has no values.
    """
    found = refusal(tensors)
    if found is not None:
        raise found


def refusal(tensors: Iterable[Named]) -> DcirError | None:
    """The error that names the first tensor that no program can be given; None if there is no such tensor."""
    for t in tensors:
        for part in _parts(t.tensor):
            if (what := without_values(part)) is not None:
                return t.error(what, _REAL)
            if (what := elsewhere(part)) is not None:
                return t.error(what, _WHERE[device()])
    return None


def refuse_unless_plain(tensors: Iterable[Named]) -> None:
    """Raise an error that names the first tensor that no program can be given as it is.

    Raises:
        InvalidInput, Unsupported: it is on another device, has no values, is stored otherwise, or its class computes in its own way.
    """
    for t in tensors:
        what = out_of_reach(t.tensor)
        if what is not None:
            raise t.error(what, _PLAIN)


def of_module(module: nn.Module) -> list[Named]:
    """A module's parameters and buffers."""
    return [
        Named(name, own=True, tensor=t)
        for every in (module.named_parameters, module.named_buffers)
        for name, t in every(remove_duplicate=False)
    ]


def of_call(args: Sequence[Any], kwargs: Mapping[str, Any], inputs: Sequence[str]) -> list[Named]:
    """The tensors among the arguments of a call; ``inputs`` are names of the positional ones."""
    named = {(inputs[i] if i < len(inputs) else f"args[{i}]"): v for i, v in enumerate(args)} | dict(kwargs)
    return [
        Named(f"{path[0].key}{pytree.keystr(path[1:])}", own=False, tensor=v)  # type: ignore[attr-defined]  # a dict's paths begin with keys
        for path, v in pytree.tree_flatten_with_path(named)[0]
        if isinstance(v, torch.Tensor)
    ]


def named_refusals(
    call: Callable[..., Any], module: Callable[[], nn.Module | None], inputs: Sequence[str]
) -> Callable[..., Any]:
    """``call``, where errors about tensors that no program can be given name those of the call.

    Dynamo's own errors about them are told as ours; ours, in a frame inside, know the names there.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except Exception as e:
            if type(e).__module__ != "torch._dynamo.exc" and not isinstance(e, InvalidInput | Unsupported):
                raise
            owner = module()
            found = refusal([*of_call(args, kwargs, inputs), *(of_module(owner) if owner is not None else ())])
            if found is None:
                raise
            raise found from e

    return run


def is_of_module(node: fx.Node) -> bool:
    """Whether an input of a graph of Dynamo is a parameter or buffer."""
    name = getattr(getattr(node.meta.get("grapharg"), "source", None), "name", None)
    return isinstance(name, str) and _is_own(name)


def _is_own(source: str) -> bool:
    return "._parameters[" in source or "._buffers[" in source


def _given(gm: fx.GraphModule, inputs: Sequence[str]) -> Iterator[Named]:
    """What Dynamo passes to a graph, as the user has it."""
    for node in gm.graph.find_nodes(op="placeholder"):
        # What comes from a part of the graph before has nothing here, and was looked at when that was made.
        argument = node.meta.get("grapharg")
        value = getattr(argument, "example", None)
        if not isinstance(value, torch.Tensor):
            continue
        source = getattr(getattr(argument, "source", None), "name", None)
        name = source if isinstance(source, str) else str(node.name)
        own = _is_own(name)
        if own:
            name = _MEMBER.sub(r".\1", _MODULE.sub("", name)).lstrip(".")
        yield Named(argument_name(name, inputs), own=own, tensor=value)


def _parts(t: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor, and those that it consists of if it is of a class that AOTAutograd takes apart."""
    yield t
    whole: Any = t
    if is_traceable_wrapper_subclass(whole):
        for name in whole.__tensor_flatten__()[0]:
            part = getattr(whole, name)
            if isinstance(part, torch.Tensor):
                yield from _parts(part)
