"""ATen graph to network SDFG: every operator through its page, the rest as calls into torch."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._library.fake_class_registry import FakeScriptObject
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils import _pytree as pytree

from dcir.errors import Unsupported
from dcir.frontends.torch.context import GraphContext
from dcir.frontends.torch.dense_forms import dense_form
from dcir.frontends.torch.nodes import describe, meta_of, origin_of
from dcir.frontends.torch.regions import ImportedBody, lower_region
from dcir.frontends.torch.results import Results
from dcir.ir.memory_plan import BufferPart
from dcir.ir.network import Network, Result, contiguous
from dcir.ir.origins import Numbers
from dcir.ops.library.subgraphs import Subgraph
from dcir.ops.library.torch_call import TorchCall, calls_graphs, pack
from dcir.ops.lowering import LeftToTorch, Lowering, Meta, NotNative, Ref, Storage
from dcir.ops.reach import QUANTISED
from dcir.ops.registry import HIGHER_ORDER, pages

_NUMBERS = (bool, int, float, complex, str, torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass
class Imported:
    """A network and what is needed to call it.

    Attributes:
        network: the SDFG with its side tables.
        constants: tensors of the constant containers.
        outputs: per result of the graph, an index into ``network.results``, a literal (None, a number), or the index of an argument that
            is no tensor and is handed on (a mesh of devices).
        fallbacks: (operator, place in the user's model) of every call into torch.
        subgraphs: graphs that operators call; they live as long as this, or whoever takes them over.
    """

    network: Network
    constants: dict[str, torch.Tensor]
    outputs: list[tuple[str, Any]] = field(default_factory=list)
    fallbacks: list[tuple[str, str]] = field(default_factory=list)
    subgraphs: list[Subgraph] = field(default_factory=list)


def import_graph(gm: fx.GraphModule, context: GraphContext | None = None) -> Imported:
    """Lower a functional ATen graph whose nodes carry fake tensors in ``meta['val']``.

    Args:
        gm: the graph.
        context: what is known of it besides.

    Raises:
        Unsupported: element types or higher-order operators that have no place in the graph.
    """
    return _Importer(gm, context or GraphContext()).run()


def _read(node: fx.Node) -> set[int] | None:
    """Which of an operator's several results are read; None if that cannot be seen."""
    if any(u.target is not operator.getitem for u in node.users):
        return None
    # The results of an operator with effects stand behind its token.
    first = 1 if node.target is torch.ops.higher_order.with_effects else 0
    return {int(u.args[1]) - first for u in node.users}  # type: ignore[arg-type]


@dataclass(frozen=True)
class Opaque:
    """An argument that is neither a tensor nor a number: nothing is known of it but that it is given."""

    index: int


class _Importer:
    """Imports one graph; ``given`` are the arguments of one inside of another, windows or values.

    Attributes:
        layouts: strides that the results of a body are wanted with.
        inlined: of a graph that becomes a part of another one, the place in the user's model; its results are ``outputs``.
        prefix: what the labels of imported operators begin with: in a graph inside of another one, the operator that holds it.
    """

    def __init__(self, gm: fx.GraphModule, context: GraphContext, given: Sequence[Any] | None = None) -> None:
        self.given = None if given is None else iter(given)
        self.layouts: Sequence[tuple[int, ...]] | None = None
        self.inlined: str | None = None
        self.prefix = ""
        self.numbers: dict[fx.Node, Numbers] = {}
        self.outputs: list[Any] = []
        self.gm, self.context = gm, context
        self.net = Network()
        self.ctx = Lowering(self.net)
        self.env: dict[fx.Node, Any] = {}
        self.root: dict[fx.Node, fx.Node] = {}
        self.owner: dict[str, fx.Node] = {}
        self.donated: dict[str, BufferPart] = {}
        self.done = Imported(self.net, {})

    def run(self) -> Imported:
        table = pages()
        for node in self.gm.graph.nodes:
            self.root[node] = node
            if node.op == "placeholder":
                self.env[node] = self._placeholder(node)
            elif node.op == "get_attr":
                self.env[node] = self._constant(node)
            elif node.op == "call_function":
                self.env[node] = self._call(node, table)
            elif node.op == "output":
                (self._output if self.given is None else self._body_output)(node)
            value = self.env.get(node)
            for ref in value if isinstance(value, tuple) else (value,):
                if isinstance(ref, Ref):
                    self.owner.setdefault(ref.data, node)
        self.net.origins.now = ()
        if self.given is None:
            self.net.origins.gone.clear()  # lowerings that were given up
        self.net.memory = self.net.memory.with_donated(self.donated)
        calls = [op for op in self.net.ops() if isinstance(op.spec, TorchCall) and op not in self.ctx.drawn]
        self.done.fallbacks = [(op.known(TorchCall).name, op.origin) for op in calls]
        if not any(calls_graphs(op.known(TorchCall)) for op in calls):
            self.done.subgraphs.clear()  # they are bodies, or have become parts of the graph
        return self.done

    def body(self, gm: fx.GraphModule, given: Sequence[Any], results: Sequence[tuple[int, ...]] | None) -> ImportedBody:
        """A graph as a network of its own (see ``regions.Importer``)."""
        inner = _Importer(gm, GraphContext(), given)
        inner.layouts = results
        inner.ctx.inside = True
        inner.net.origins = self.net.origins
        self._run_inside(inner)
        net = inner.net
        held = list(net.constants)
        net.inputs, net.constants = [*filter(None, net.inputs), *held], []
        for name in held:
            net.containers[name].role = "input"
        metas = [Meta(r.shape, r.strides, r.dtype) for r in net.results]
        return ImportedBody(net, metas, [(net.names[n], inner.done.constants[n]) for n in held])

    def _inlined(self, gm: fx.GraphModule, given: Sequence[Any], val: Any) -> Any:
        """The results of a graph whose operators become some of this one's, in the tree that ``val`` is."""
        inner = _Importer(gm, GraphContext(), given)
        inner.net, inner.ctx, inner.done, inner.inlined = self.net, self.ctx, self.done, self.ctx.origin
        self._run_inside(inner)
        left = iter(inner.outputs)
        return pytree.tree_map(lambda v: next(left) if isinstance(v, torch.Tensor) else v, val)

    def _run_inside(self, inner: _Importer) -> None:
        """Import a graph that the operator at hand holds."""
        now, origin = self.net.origins.now, self.ctx.origin
        inner.prefix = f"{self.net.origins.places[now[0]].label}/"
        try:
            inner.run()
        finally:
            self.net.origins.now, self.ctx.origin = now, origin

    def constant(self, value: Any, name: str) -> Ref:
        """A tensor that a graph inside holds."""
        meta = meta_of(value)
        assert meta is not None
        data = self.net.add_container(meta.shape, meta.dtype, "constant", meta.strides)
        self.net.names[data] = name
        self.done.constants[data] = value
        return Ref(data, meta.shape, meta.strides, 0, meta.dtype)

    def _placeholder(self, node: fx.Node) -> Any:
        if self.given is not None:
            return self._argument(node)
        meta = meta_of(node.meta.get("val"), node)
        token = any(u.target is torch.ops.higher_order.with_effects and u.args[0] is node for u in node.users)
        # Where an effect is in a graph that this one calls, nobody reads its token.
        if token or (meta is not None and meta.shape == (0,) and not node.users):  # AOTAutograd passes None for it
            self.net.inputs.append("")
            return None
        if meta is None:  # a number among the inputs: the graph is specialised to it
            self.net.inputs.append("")
            value = node.meta.get("val")
            return value if value is None or isinstance(value, _NUMBERS) else Opaque(len(self.net.inputs) - 1)
        name = self.net.add_container(meta.shape, meta.dtype, "input", meta.strides)
        number = len(self.net.inputs) - 1
        if number in self.context.static:
            self.net.static.add(name)
        if number in self.context.donated:
            self.donated[name] = self.context.donated[number]
        self.net.names[name] = str(node.target)
        return Ref(name, meta.shape, meta.strides, 0, meta.dtype)

    def _argument(self, node: fx.Node) -> Any:
        """An argument of a graph inside of another: as it lies there."""
        assert self.given is not None
        value, meta = next(self.given), meta_of(node.meta.get("val"), node)
        if not isinstance(value, Ref):
            if meta is not None:
                raise NotNative
            return value
        if meta is None or (meta.shape, meta.dtype) != (value.shape, value.dtype):
            raise NotNative
        if self.inlined is not None:
            return value
        name = self.net.add_container(value.shape, value.dtype, "input", value.strides)
        return replace(value, data=name, offset=0)

    def _body_output(self, node: fx.Node) -> None:
        """Every result in a container of its own, in the layout that is wanted; of an inlined graph, as it is."""
        flat = node.args[0] if isinstance(node.args[0], tuple | list) else (node.args[0],)
        if self.inlined is not None:
            self.outputs = [self.env[out] for out in flat]  # type: ignore[index]
            return
        for number, out in enumerate(flat):
            value = self.env[out] if isinstance(out, fx.Node) else None
            if not isinstance(value, Ref):
                raise NotNative
            c, want = self.net.containers[value.data], contiguous(value.shape)
            if self.layouts is not None:
                if number >= len(self.layouts) or len(self.layouts[number]) != len(value.shape):
                    raise NotNative
                want = self.layouts[number]
            whole = (c.role, c.shape, c.strides, value.offset, value.strides)
            if whole != ("transient", value.shape, want, 0, want):
                name = self.net.add_container(value.shape, value.dtype, "transient", want)
                self._at(out)
                value = self.ctx.copy(value, Ref(name, value.shape, want, 0, value.dtype))
            self.net.promote(value.data)
            self.net.results.append(Result(value.data, value.shape, want, 0, value.dtype))

    def _constant(self, node: fx.Node) -> Any:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, fx.GraphModule):
            self.done.subgraphs.append(Subgraph(value))
            return self.done.subgraphs[-1]
        if isinstance(value, FakeScriptObject):
            return value.real_obj
        if isinstance(value, FakeTensor):  # a token that AOTAutograd hands on
            return None
        if isinstance(value, pytree.TreeSpec):  # how a graph that writes is called; only torch reads it
            self.done.subgraphs.append(Subgraph(value))
            return self.done.subgraphs[-1]
        if not isinstance(value, torch.Tensor):
            raise Unsupported.collect([(f"a {type(value).__name__} inside the graph", describe(node))])
        with unset_fake_temporarily():  # a real tensor, whatever mode the graph is traced in
            value = value.detach()
        meta = meta_of(value, node)
        assert meta is not None
        name = self.net.add_container(meta.shape, meta.dtype, "constant", meta.strides)
        self.net.names[name] = str(node.target)
        self.done.constants[name] = value
        return Ref(name, meta.shape, meta.strides, 0, meta.dtype)

    def _at(self, node: fx.Node) -> None:
        """What is added to the network from here on comes from this operator."""
        while node.target is operator.getitem:
            node = node.args[0]  # type: ignore[assignment]
        origins = self.net.origins
        if node not in self.numbers:
            self.numbers[node] = origins.add(origin_of(node, self.prefix))
        origins.now, self.ctx.origin = self.numbers[node], self.inlined or describe(node)

    def _call(self, node: fx.Node, table: dict[str, Any]) -> Any:
        if node.target is operator.getitem:
            source, index = node.args
            self.root[node] = self.root[source]  # type: ignore[index]
            return self.env[source][index]  # type: ignore[index]
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: self.env[n])
        if QUANTISED.intersection(v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.dtype)):
            raise Unsupported(
                f"{node.target} makes a quantised tensor", where=describe(node) or None, hint="numbers and their scales"
            )
        if not isinstance(node.target, torch._ops.OpOverload):
            return self._python_call(node, args, kwargs)
        val = node.meta.get("val")
        if not node.target._schema.returns:  # a check: nothing to compute, but it must not get lost
            self._through_torch(node, node.target, (), args, kwargs)
            return None
        if not isinstance(val, torch.Tensor | tuple | list):
            return val  # sym_size and the like: a number known since the graph was made
        self.ctx.outs = [meta_of(v, node) for v in (val if isinstance(val, tuple | list) else (val,))]
        self._at(node)
        if any(r.alias_info is not None for r in node.target._schema.returns) and node.args:
            first = node.args[0]
            if isinstance(first, fx.Node):
                self.root[node] = self.root[first]
                self.ctx.storage = self._storage(first)
        if node.target.namespace == "dcir" and (made := self._region(node, str(node.target), args)) is not None:
            return made
        page = table.get(str(node.target))
        if page is not None:
            before = len(self.net.ops())
            self.ctx.given = node.args
            try:
                return page.lower(self.ctx, *args, **kwargs)
            except NotNative as e:
                for op in self.net.ops()[before:]:
                    self.net.remove_op(op, into=())
                if isinstance(e, LeftToTorch):
                    made = self._through_torch(node, node.target, val, args, kwargs)
                    self.ctx.drawn.add(self.net.ops()[-1])
                    return made
        return self._through_torch(node, node.target, val, args, kwargs)

    def _storage(self, node: fx.Node) -> Storage | None:
        base, val = self.env[self.root[node]], self.root[node].meta.get("val")
        meta = meta_of(val)
        if val is None or meta is None or not isinstance(base, Ref):
            return None
        start = val.storage_offset()
        return Storage(base, meta, int(start), int(node.meta["val"].storage_offset()))

    def _python_call(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.target is torch.ops.higher_order.with_effects:
            # Operators with effects run in the order of the graph here, so the token between them carries nothing.
            token, op, *rest = args
            val = tuple(node.meta["val"])[1:]
            results = self._through_torch(node, op, val, rest, kwargs)
            return (token, *(results if val else (None,)))
        if isinstance(node.target, torch._ops.HigherOrderOperator) and "val" in node.meta:
            made = self._region(node, node.target.name(), args)
            if made is not None:
                return made
            return self._through_torch(node, f"{HIGHER_ORDER}.{node.target.name()}", node.meta["val"], args, kwargs)
        if "val" in node.meta and not isinstance(node.meta["val"], torch.Tensor | tuple | list):
            return node.meta["val"]
        raise Unsupported.collect([(f"{node.target} (not an ATen operator)", describe(node))])

    def _region(self, node: fx.Node, name: str, args: Any) -> Any:
        """An operator with bodies; None if it is none, or has something in them that is no generated code."""
        val = node.meta["val"]
        self.ctx.outs = [meta_of(v, node) for v in (val if isinstance(val, tuple | list) else (val,))]
        self._at(node)
        before = len(self.net.ops())
        try:
            form = dense_form(name, args)
            return lower_region(self, name, args) if form is None else self._inlined(*form, val)
        except NotNative:
            for op in self.net.ops()[before:]:
                self.net.remove_op(op, into=())
            return None

    def _through_torch(self, node: fx.Node, op: Any, val: Any, args: Any, kwargs: Any) -> Any:
        self.ctx.outs = [meta_of(v, node) for v in (val if isinstance(val, tuple | list) else (val,))]
        self._at(node)
        refs: list[Ref] = []

        def number(value: Any) -> int | None:
            if not isinstance(value, Ref):
                return None
            refs.append(value)
            return len(refs) - 1

        try:
            packed = tuple(pack(a, number) for a in args)
            named = tuple((k, pack(v, number)) for k, v in kwargs.items())
        except TypeError as e:
            raise Unsupported(f"{op} takes {e}, which has no place in a graph", where=self.ctx.origin or None) from e
        read = _read(node) if isinstance(val, tuple | list) else None
        results = [
            None if m is None or (read is not None and i not in read) else self.ctx.new(m.shape, m.dtype, m.strides)
            for i, m in enumerate(self.ctx.outs)
        ]
        made = [r for r in results if r is not None]
        spec = TorchCall(
            str(op), packed, named,
            tuple((r.shape, r.strides, r.dtype) for r in refs), tuple((r.shape, r.strides, r.dtype) for r in made),
            tuple(i for i, r in enumerate(results) if r is not None),
        )  # fmt: skip
        self.ctx.emit(spec, refs, made)
        return tuple(results) if isinstance(val, tuple | list) else results[0]

    def _output(self, node: fx.Node) -> None:
        flat = node.args[0] if isinstance(node.args[0], tuple | list) else (node.args[0],)
        saved = len(flat) if self.context.first_saved is None else self.context.first_saved
        results = Results(self.ctx, self.env, self.root, self.owner, self._at)
        if self.context.kind != "backward":
            results.joined(out for number, out in enumerate(flat[:saved]) if number not in self.context.updates)
        given = set[str]()
        for number, out in enumerate(flat):
            if number in self.context.updates:
                results.update(out, self.net.inputs[self.context.updates[number]])
                self.done.outputs.append(("literal", None))
                continue
            if not isinstance(out, fx.Node) or not isinstance(self.env[out], Ref):
                value = self.env[out] if isinstance(out, fx.Node) else out
                opaque = isinstance(value, Opaque)
                self.done.outputs.append(("argument", value.index) if opaque else ("literal", value))
                continue
            ref = results.presentable(out, free=number >= saved)
            # Autograd keeps gradients as they come, and whoever scales one would scale the other.
            if self.context.kind == "backward" and ref.data in given:
                ref = results.own(out)
            given.add(ref.data)
            self.net.promote(ref.data)
            if number >= saved:
                self.net.free.add(len(self.net.results))
            self.net.results.append(Result(ref.data, ref.shape, ref.strides, ref.offset, ref.dtype))
            self.done.outputs.append(("result", len(self.net.results) - 1))
