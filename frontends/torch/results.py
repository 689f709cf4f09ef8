"""What a graph returns, as torch would: its strides, its aliases among inputs and results, and no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import fx

from dcir.frontends.torch.nodes import meta_of
from dcir.ir.network import Network, Result
from dcir.ops.lowering import Lowering, Ref, is_dense


@dataclass
class Results:
    """The results of one imported graph.

    Attributes:
        ctx: what adds operators to the network.
        env: value per node of the graph.
        root: per node, the node whose memory torch's result lies in.
        owner: per container, the node that it was made for.
        at: says where what is added comes from.
    """

    ctx: Lowering
    env: Mapping[fx.Node, Any]
    root: Mapping[fx.Node, fx.Node]
    owner: Mapping[str, fx.Node]
    at: Callable[[fx.Node], None]
    _shared: dict[fx.Node, Ref | None] = field(default_factory=dict)

    @property
    def net(self) -> Network:
        return self.ctx.net

    def joined(self, outs: Iterable[Any]) -> None:
        """Results of one root lie in one container, as in torch: what is written to one is read in the others.

        A root whose views cannot all be what is there (a clone was elided, the layout is another) is copied, once.
        """
        nodes = [n for n in outs if isinstance(n, fx.Node) and isinstance(self.env[n], Ref)]
        roots = Counter(self.root[n] for n in nodes)
        for n in nodes:
            root = self.root[n]
            if roots[root] > 1 and self._can_join(n, root) and not self._as_it_is(n):
                self._shared[root] = None

    def presentable(self, node: fx.Node, *, free: bool) -> Ref:
        """A node's value as callers may hold it: aliasing only what torch's result would alias, with torch's strides unless ``free``."""
        ref: Ref = self.env[node]
        meta, root = meta_of(node.meta["val"]), self.root[node]
        assert meta is not None
        if not free and root in self._shared and self._can_join(node, root):
            whole = self._shared[root] or self.own(root)
            self._shared[root] = whole
            start = node.meta["val"].storage_offset() - root.meta["val"].storage_offset()
            return Ref(whole.data, meta.shape, meta.strides, int(start), meta.dtype)
        if self._as_it_is(node):
            return self._as_torch_says(ref, meta.strides)
        mine = self.net.containers[ref.data].role != "constant" and self.owner[ref.data] is root is node
        if free and mine and all(is_dense(ref.shape, s) for s in (ref.strides, meta.strides)):
            return ref
        return self.own(node)

    def own(self, node: fx.Node) -> Ref:
        """A copy with the exact strides, gaps and all: the backward graph was made for tensors that have them."""
        meta = meta_of(node.meta["val"])
        assert meta is not None
        name = self.net.add_container(meta.shape, meta.dtype, "transient", meta.strides)
        self.at(node)
        return self.ctx.copy(self.env[node], Ref(name, meta.shape, meta.strides, 0, meta.dtype))

    def update(self, node: fx.Node, source: str) -> None:
        """Write a node's value in place of the input ``source``; the caller gets nothing for it."""
        value, c = self.env[node], self.net.containers[source]
        walks = zip(value.strides, c.strides, c.shape, strict=False)
        if (
            value.data == source
            and (value.offset, value.shape) == (0, c.shape)
            and all(a == b or d == 1 for a, b, d in walks)
        ):  # any other window of it, transposed or repeated, is written to it
            return
        name = self.net.add_container(c.shape, c.dtype, "transient", c.strides)
        self.at(node)
        self.ctx.copy(value, Ref(name, c.shape, c.strides, 0, c.dtype))
        self.net.promote(name)
        self.net.results.append(Result(name, c.shape, c.strides, 0, c.dtype))
        self.net.updates[name] = source

    def _can_join(self, node: fx.Node, root: fx.Node) -> bool:
        base = self.env[root]
        return root.op == "call_function" and isinstance(base, Ref) and base.dtype == self.env[node].dtype

    def _as_it_is(self, node: fx.Node) -> bool:
        """Whether its value lies where torch's would, in torch's strides."""
        ref, meta = self.env[node], meta_of(node.meta["val"])
        assert meta is not None
        same = all(a == b or d == 1 for a, b, d in zip(ref.strides, meta.strides, ref.shape, strict=True))
        return same and self.owner[ref.data] is self.root[node] and self.net.containers[ref.data].role != "constant"

    def _as_torch_says(self, ref: Ref, strides: tuple[int, ...]) -> Ref:
        """``ref`` with torch's strides in dimensions of extent 1, which other graphs take for a sign of channels-last."""
        if ref.strides == strides:
            return ref
        c = self.net.containers[ref.data]
        if c.role == "transient" and (c.shape, c.strides, ref.offset) == (ref.shape, ref.strides, 0):
            c.strides = strides
        return replace(ref, strides=strides)
