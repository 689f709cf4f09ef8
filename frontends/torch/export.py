"""Ahead-of-time capture: a module's forward pass as one closed ATen graph, for files that hold compiled networks."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_export_module
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental import _config
from torch.fx.traceback import preserve_node_meta
from torch.utils import _pytree as pytree

from dcir.errors import DcirError, InvalidInput, Unsupported
from dcir.frontends.torch.admission import Named, of_call, of_module, refuse_unless_plain
from dcir.frontends.torch.as_eager import decomposed_as_eager
from dcir.frontends.torch.constant_sizes import constant_sizes
from dcir.frontends.torch.decompose import decompositions
from dcir.frontends.torch.layer_shapes import shapes_from_one_step
from dcir.frontends.torch.recurrent import lower_layers
from dcir.frontends.torch.shapes.size_one import holds_at_one


@dataclass(frozen=True)
class State:
    """One tensor the module brings along: its name in the state dict, "parameter", "buffer" or "constant"."""

    name: str
    role: str
    tensor: torch.Tensor


@dataclass(frozen=True)
class Exported:
    """The ATen graph of one forward pass.

    Attributes:
        graph: its placeholders are ``state`` first, then the tensor leaves of the call's arguments; its results are the
            tensor leaves of what the call returns.
        state: parameters, buffers and constants in placeholder order.
        inputs: names of the tensor leaves of the arguments.
        result: what the call returns, with ``Leaf`` in place of tensors.
    """

    graph: fx.GraphModule
    state: tuple[State, ...]
    inputs: tuple[str, ...]
    result: Any


@dataclass(frozen=True)
class Leaf:
    """Stands for result ``index`` of a graph within the structure that the module returns."""

    index: int


def export_inference(
    module: torch.nn.Module | ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Exported:
    """Capture a module's forward pass without gradients, in the mode (training or not) that it is in.

    Args:
        module: the module, or a program that torch.export made of it.
        args, kwargs: an example call; only shapes, strides and types of its tensors matter, other values are fixed.

    Raises:
        InvalidInput, Unsupported: it is no module; a tensor is none that a program can be given; the forward pass writes to buffers
            or arguments; or torch.export cannot follow it.
    """
    if not isinstance(module, torch.nn.Module | ExportedProgram):
        raise InvalidInput(
            f"a module is captured, this is of type {type(module).__name__}",
            hint="an nn.Module whose forward calls it, or a torch.export.ExportedProgram",
        )
    refuse_unless_plain(of_call(args, kwargs or {}, ()))
    program = module if isinstance(module, ExportedProgram) else _exported(module, args, kwargs or {})
    return _flattened(program, args, kwargs, [v for v in _leaves(args, kwargs) if isinstance(v, torch.Tensor)])


def _flattened(
    program: ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any] | None, tensors: Sequence[torch.Tensor]
) -> Exported:
    """The ATen graph of a program for calls like one, with these tensors for those in it."""
    state, inputs = _split(program)
    refuse_unless_plain(Named(s.name, own=True, tensor=s.tensor) for s in state)
    given: list[torch.Tensor] = [s.tensor for s in state]
    if any(isinstance(t, FakeTensor) for t in tensors):  # all of one mode, or it is none
        values = (n.meta["val"] for n in program.graph.nodes if n.op == "placeholder")
        given = [v for v in values if isinstance(v, torch.Tensor)][: len(state)]
    # A graph of its own, over the same tensors.
    module = fx.GraphModule(program.graph_module, copy.deepcopy(program.graph_module.graph))
    lower_layers(module)
    flat = _Flat(module, _slots(args, kwargs))
    # Fake tensors bring their own mode.
    mode = None if any(isinstance(t, FakeTensor) for t in tensors) else TracingContext(constant_sizes(module))
    try:
        with torch.no_grad(), decomposed_as_eager(), contextlib.nullcontext() if mode is None else tracing(mode):
            graph, signature = aot_export_module(
                flat, (*given, *tensors), trace_joint=False, decompositions=decompositions()
            )
    except (DynamicOutputShapeException, DataDependentOutputException) as e:
        raise Unsupported(
            f"{e.func} asks for data, or makes a result of a size that data tell", hint="dcir.optimize(module) has PyTorch run it",
        ) from e  # fmt: skip
    assert isinstance(graph, fx.GraphModule)
    _drop_tokens(graph, len(signature.input_tokens))
    _refuse_writes(graph, [*(s.name for s in state), *inputs], signature)
    return Exported(graph, state, inputs, pytree.tree_unflatten(flat.marked, program.call_spec.out_spec))


def export_for_sizes(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], sizes: Mapping[tuple[int, int], Any],
    *, ones: bool = False,
) -> Exported:  # fmt: skip
    """Capture a module's forward pass once for all sizes within bounds; the graph has symbols for them.

    Args:
        args, kwargs: an example call, whose tensors are distinct objects.
        sizes: a ``torch.export.Dim`` for the (number of a tensor of the call, dimension) of each size that differs from call to call.
        ones: whether the graph is to hold where sizes are 1, too.

    Raises:
        Unsupported: there is no one graph for all of them.
    """
    refuse_unless_plain(of_call(args, kwargs, ()))
    shapes = torch.export.ShapesCollection()
    tensors = [v for v in _leaves(args, kwargs) if isinstance(v, torch.Tensor)]
    for number in dict.fromkeys(number for number, _ in sizes):
        shapes[tensors[number]] = {d: dim for (n, d), dim in sizes.items() if n == number}
    with _config.patch(backed_size_oblivious=ones):  # type: ignore[attr-defined]  # install_config_module adds it
        program = _exported(module, args, kwargs, shapes)
        places = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"]
        moving = [v for v in places if isinstance(v, torch.Tensor)][-len(tensors) :]
        exported = _flattened(program, args, kwargs, moving)
        if any(isinstance(v, torch.SymInt) for v in pytree.tree_leaves(exported.result)):
            raise Unsupported("a result that is a size")
        if ones and not holds_at_one(exported.graph):
            raise Unsupported("sizes of 1 have other shapes")
    return exported


def export_for_batches(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], batched: Sequence[int], most: int | None
) -> ExportedProgram:
    """Capture a module's forward pass once for every batch from 2 images up to ``most``.

    Args:
        args, kwargs: an example call with at least 2 images, whose tensors are distinct objects.
        batched: numbers of the tensors of the call whose first dimension is the batch.

    Raises:
        Unsupported: there is no one graph for all of them.
    """
    shapes = torch.export.ShapesCollection()
    tensors = [v for v in _leaves(args, kwargs) if isinstance(v, torch.Tensor)]
    images = torch.export.Dim("images", min=2, max=most)
    for number in batched:
        shapes[tensors[number]] = {0: images}
    return _exported(module, args, kwargs, shapes)


def _exported(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any = None
) -> ExportedProgram:
    refuse_unless_plain(of_module(module))
    try:
        with torch.no_grad(), _quiet(), shapes_from_one_step():
            return torch.export.export(module, tuple(args), dict(kwargs), dynamic_shapes=shapes, strict=False)
    except Exception as e:
        explain = getattr(module, "explain_failure", None)
        if explain is not None and not (isinstance(e, DcirError) and e.where):
            explain(args, kwargs, e)
        if isinstance(e, DcirError):
            raise
        raise Unsupported(
            f"the forward pass cannot be captured as one graph: {_reason(e)[:300]}",
            where=type(module).__name__,
            hint="dcir.optimize(module) compiles what can be captured; torch.export.export says more",
        ) from e


def _reason(error: Exception) -> str:
    """What torch says, in one line: which sizes a trace is not for, if that is it, and else the first one."""
    first, *more = str(error).strip().splitlines() or [""]
    rows = [line[4:] for line in more if line.startswith("  - ")]
    return " ".join(rows) if first.startswith("Constraints violated") and rows else first


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _split(program: ExportedProgram) -> tuple[tuple[State, ...], tuple[str, ...]]:
    roles = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer", InputKind.CONSTANT_TENSOR: "constant"}
    state, inputs = [], []
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            if isinstance(values.get(spec.arg.name), torch.Tensor):
                inputs.append(spec.arg.name)
            continue
        if spec.kind not in roles or spec.target is None:
            raise Unsupported(f"an input of kind {spec.kind.name.lower()} has no place in a compiled file")
        source = program.state_dict if spec.target in program.state_dict else program.constants
        tensor = source[spec.target]
        if not isinstance(tensor, torch.Tensor):
            raise Unsupported(f"an object of type {type(tensor).__name__} has no place in a compiled file")
        role = roles[spec.kind]
        if role == "buffer" and spec.target not in program.state_dict:
            role = "constant"  # not persistent: no part of the state dict
        state.append(State(spec.target, role, tensor.detach()))
    return tuple(state), tuple(inputs)


def _leaves(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> list[Any]:
    return pytree.tree_leaves((tuple(args), dict(kwargs or {})))


def _slots(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> list[Any]:
    """The program's arguments after the state: ``Leaf`` where a tensor goes, else the fixed value."""
    count = iter(range(1 << 30))
    return [Leaf(next(count)) if isinstance(v, torch.Tensor) else v for v in _leaves(args, kwargs)]


class _Flat(torch.nn.Module):
    """An exported graph as AOTAutograd's exporter wants it: tensors in, a tuple of tensors out."""

    def __init__(self, graph: fx.GraphModule, slots: list[Any]) -> None:
        super().__init__()
        # Held in a list: its parameters are arguments here, and the exporter must not find them twice.
        self.graphs, self.slots = [copy.copy(graph)], slots
        self.marked: list[Any] = []

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = sum(isinstance(s, Leaf) for s in self.slots)
        state, inputs = tensors[: len(tensors) - given], tensors[len(tensors) - given :]
        arguments = [inputs[s.index] if isinstance(s, Leaf) else s for s in self.slots]
        # Node by node, so that the new nodes remember the user's modules and lines.
        with preserve_node_meta():
            values = fx.Interpreter(self.graphs[0]).run(*state, *arguments)
        out: list[torch.Tensor] = []
        self.marked = []
        for value in values:
            if isinstance(value, torch.Tensor):
                self.marked.append(Leaf(len(out)))
                out.append(value)
            else:
                self.marked.append(value)
        return tuple(out)


def _drop_tokens(graph: fx.GraphModule, count: int) -> None:
    """Take out the tokens that order operators with effects; the order of the graph does that here."""
    if not count:
        return
    nodes = list(graph.graph.nodes)
    for node in nodes[:count]:
        for user in list(node.users):
            user.args = tuple(None if a is node else a for a in user.args)
        graph.graph.erase_node(node)
    nodes[-1].args = (tuple(nodes[-1].args[0])[count:],)
    graph.recompile()


def _refuse_writes(graph: fx.GraphModule, names: Sequence[str], signature: Any) -> None:
    places = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    by_place = dict(zip(places, names, strict=True))
    written = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if written:
        shown = ", ".join(by_place.get(str(w), str(w)) for w in written[:4])
        raise Unsupported(
            f"the forward pass writes to {shown}{' and others' if len(written) > 4 else ''}",
            hint="model.eval() before saving; a compiled file holds a function without state",
        )
