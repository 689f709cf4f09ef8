"""What an operator page works with: references to tensors in the network, and builders for kernels over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.operator import Operator
from dcir.ir.statements import Cast, Load, Store
from dcir.ir.types import TYPES, compute_type, words
from dcir.ops.library.torch_call import TorchCall
from dcir.ops.torch_types import FROM_NAME, TORCH_TYPES

DEFAULT = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
INT_TO_FLOAT = ELEMENTWISE_TYPE_PROMOTION_KIND.INT_TO_FLOAT
BOOL = ELEMENTWISE_TYPE_PROMOTION_KIND.ALWAYS_BOOL


class NotNative(Exception):
    """A page's lowering does not cover these arguments; the operator runs through torch instead."""


class LeftToTorch(NotNative):
    """The operator is torch's by intent, for an error that torch alone raises: no lack of generated code."""


@dataclass(frozen=True)
class Meta:
    """Shape, strides and element type of a result, as fake tensors tell."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Ref:
    """A tensor in the network: a strided window of a container. Views are new windows, never copies."""

    data: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def operand(self) -> Operand:
        """Where it begins."""
        return Operand(self.data, self.offset)

    def expand_to(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Strides of this tensor broadcast to ``shape``."""
        pad = len(shape) - len(self.shape)
        return (0,) * pad + tuple(0 if d == 1 else s for d, s in zip(self.shape, self.strides, strict=True))


@dataclass(frozen=True)
class Storage:
    """What a view operator's argument is a view of, in torch's own layout (which need not be ours).

    Attributes:
        base: the tensor that owns the elements.
        meta: its shape and strides in torch.
        base_start, start: torch's storage offsets of the base and of the argument.
    """

    base: Ref
    meta: Meta
    base_start: int
    start: int


class Kernel:
    """Builds one program node: loads and stores name tensors, operand numbers are dealt out behind the scenes."""

    def __init__(self, ctx: Lowering, outer: Sequence[int], inner: Sequence[int] = ()) -> None:
        self.ctx = ctx
        self.body = LoopNestBuilder(outer, inner)
        self._ins: dict[Operand, int] = {}
        self._outs: list[Operand] = []

    @property
    def dims(self) -> tuple[int, ...]:
        """Extents of all loops, outer first."""
        return self.body.outer + self.body.inner

    def operand(self, ref: Ref) -> int:
        """Number of the input operand that holds ``ref``."""
        if ref.operand not in self._ins:
            self._ins[ref.operand] = self.body.input(ref.dtype)
        return self._ins[ref.operand]

    def load(
        self,
        ref: Ref,
        strides: Sequence[int] | None = None,
        *,
        dtype: str | None = None,
        mask: Expr | None = None,
        other: Expr | None = None,
    ) -> Expr:
        """The element of ``ref`` at this point; by default ``ref`` is broadcast to all loops (trailing dims align)."""
        st = ref.expand_to(self.dims) if strides is None else tuple(strides)
        v = self.body.load(self.operand(ref), st, mask, other)
        return self.body.convert(v, dtype) if dtype else v

    def gather(self, ref: Ref, strides: Sequence[int], indices: Sequence[Expr], dims: Sequence[int], **kw: Any) -> Expr:
        """The element of ``ref`` at loop strides plus, for each of its ``dims``, a computed index."""
        extents, steps = [ref.shape[d] for d in dims], [ref.strides[d] for d in dims]
        return self.body.gather(self.operand(ref), strides, indices, extents, steps, **kw)

    def store(self, ref: Ref, value: Expr, strides: Sequence[int] | None = None) -> None:
        """Write ``value`` to ``ref`` (by default its dims are the outer loops, or all loops if it has as many)."""
        if strides is None:
            inner = len(self.body.inner)
            whole = len(ref.shape) == len(self.dims) and ref.shape == self.dims
            strides = ref.strides if whole else ref.strides + (0,) * inner
        self._outs.append(ref.operand)
        self.body.store(self.body.output(ref.dtype), strides, value)

    def done(self) -> None:
        """Add the node to the network (nothing to do where there is nothing to compute)."""
        if any(d == 0 for d in self.body.outer):
            return
        self.ctx.emit(self.body.finish(), list(self._ins), self._outs)


class Lowering:
    """The context of one operator's lowering.

    Attributes:
        net: the network being built.
        outs: what the operator must produce, one Meta per tensor result (None for absent ones).
        origin: place in the user's model, for reports.
        storage: of a view operator's first argument, where known.
        given: its arguments as a graph has them: what is no number there, where one belongs, follows from the sizes of inputs.
        inside: whether it is in a body of a loop or a branch, all of which runs through torch where one operator of it does.
        drawn: calls into torch that are no lack of generated code: chance is eager's only where torch draws it, an error where it
            raises one.
    """

    def __init__(self, net: Network) -> None:
        self.net = net
        self.inside = False
        self.drawn: set[Op] = set()
        self.storage: Storage | None = None
        self.given: tuple[Any, ...] = ()
        self.outs: list[Meta | None] = []
        self.origin = ""

    @property
    def out(self) -> Meta:
        """The (first) result to produce."""
        meta = self.outs[0]
        assert meta is not None
        return meta

    # ------------------------------------------------------------------ tensors
    def new(self, shape: Sequence[int], dtype: str, strides: Sequence[int] | None = None) -> Ref:
        """A new transient; ``strides`` are taken over if they cover a dense block, else row-major ones are used."""
        shape = tuple(int(d) for d in shape)
        st = contiguous(shape) if strides is None or not is_dense(shape, strides) else tuple(int(s) for s in strides)
        return Ref(self.net.add_container(shape, dtype, "transient", st), shape, st, 0, dtype)

    def result(self, index: int = 0) -> Ref:
        """A new transient for result ``index``."""
        meta = self.outs[index]
        assert meta is not None
        return self.new(meta.shape, meta.dtype, meta.strides)

    def _beside(self, args: Sequence[Any]) -> Ref:
        """A new transient for a pointwise result: row by row if an operand is, even where torch follows another operand.

        Operands in two orders leave a choice. Sums in rows can be rows of products, of all images at once.
        """
        meta = self.out
        if is_contiguous(meta.shape, meta.strides):
            return self.result()
        rows = any(isinstance(a, Ref) and a.shape == meta.shape and is_contiguous(a.shape, a.strides) for a in args)
        return self.new(meta.shape, meta.dtype) if rows else self.result()

    def emit(self, spec: Operator, ins: Sequence[Operand | Ref], outs: Sequence[Operand | Ref]) -> Op:
        """Add a node computing ``spec``.

        Raises:
            NotNative: generated code knows no such words on the operands' element types.
        """
        a = [i.operand if isinstance(i, Ref) else i for i in ins]
        o = [i.operand if isinstance(i, Ref) else i for i in outs]
        if not isinstance(spec, TorchCall):
            _check_types(spec, [self.net.containers[x.data].dtype for x in (*a, *o)])
        return self.net.add_op(spec, a, o, origin=self.origin)

    def draw(self, spec: TorchCall, ins: Sequence[Operand | Ref], outs: Sequence[Operand | Ref]) -> None:
        """Add a call of torch's random numbers to a page's own operators."""
        self.drawn.add(self.emit(spec, ins, outs))

    def kernel(self, outer: Sequence[int], inner: Sequence[int] = ()) -> Kernel:
        """A builder for one program node over these loops."""
        return Kernel(self, outer, inner)

    # ------------------------------------------------------------------ kernels
    def promote(self, args: Sequence[Any], kind: Any = DEFAULT) -> str:
        """The compute type of a pointwise operator on ``args`` (Refs and Python numbers), by torch's rules."""
        types = {a.dtype for a in args if isinstance(a, Ref)}
        numbers = [a for a in args if not isinstance(a, Ref) and a is not None]
        if len(types) == 1 and not numbers and kind is DEFAULT:
            return compute_type(next(iter(types)))
        like = [
            torch.empty(a.shape, dtype=FROM_NAME[a.dtype], device="meta") if isinstance(a, Ref) else a
            for a in args
            if a is not None
        ]
        computation, _ = elementwise_dtypes(*like, type_promotion_kind=kind)
        if computation not in TORCH_TYPES:
            raise NotNative(f"arithmetic in {computation}")
        return compute_type(TORCH_TYPES[computation])

    def pointwise(
        self,
        fn: Callable[..., Expr],
        *args: Any,
        kind: Any = DEFAULT,
        compute: str | None = None,
        out: Ref | None = None,
    ) -> Ref:
        """One pointwise node: ``fn`` gets every tensor and number of ``args`` as a value in the compute type.

        Args:
            fn: from values to the result's value.
            args: Refs (broadcast to the result's shape) and Python numbers.
            kind: torch's type promotion kind.
            compute: compute type, instead of the promoted one.
            out: write here instead of into a new transient.
        """
        compute = compute or self.promote(args, kind)
        if compute not in ("f32", "f64", "i64", "i32", "i16", "i8", "u8", "bool"):
            raise NotNative(f"arithmetic in {compute}")
        dst = out or self._beside(args)
        k = self.kernel(dst.shape)
        values = [k.load(a, dtype=compute) if isinstance(a, Ref) else k.body.const(a, compute) for a in args]
        k.store(dst, fn(*values))
        k.done()
        return dst

    def copy(self, src: Ref, dst: Ref) -> Ref:
        """Copy (and convert) ``src``, broadcast, into ``dst``."""
        if words(src.dtype) == "none" and src.dtype == dst.dtype:
            return self._copy_in_torch(src, dst)
        k = self.kernel(dst.shape)
        k.store(dst, k.load(src))
        k.done()
        return dst

    def _copy_in_torch(self, src: Ref, dst: Ref) -> Ref:
        if any(s < 0 for s in src.strides):
            raise NotNative("torch's tensors do not run backwards")
        if dst.numel:
            source, target = (dst.shape, src.expand_to(dst.shape), src.dtype), (dst.shape, dst.strides, dst.dtype)
            spec = TorchCall("aten.clone.default", (("t", 0),), (), (source,), (target,), (0,))
            self.emit(spec, [src], [dst])
        return dst

    def contiguous(self, ref: Ref) -> Ref:
        """``ref`` itself if it is row-major without gaps, else a copy."""
        if is_contiguous(ref.shape, ref.strides):
            return ref
        return self.copy(ref, self.new(ref.shape, ref.dtype))

    def full(self, value: float, dst: Ref) -> Ref:
        """Fill ``dst`` with a number."""
        k = self.kernel(dst.shape)
        k.store(dst, k.body.const(value, compute_type(dst.dtype)))
        k.done()
        return dst

    def reshape(self, ref: Ref, shape: Sequence[int]) -> Ref:
        """``ref`` with another shape: a view where strides allow, else a view of a copy."""
        strides = view_strides(ref.shape, ref.strides, shape)
        if strides is None:
            ref = self.contiguous(ref)
            strides = contiguous(shape)
        return replace(ref, shape=tuple(int(d) for d in shape), strides=strides)


def _check_types(spec: Operator, types: Sequence[str]) -> None:
    """Refuse what generated code cannot do on element types that it only moves and converts, or not even that.

    Raises:
        NotNative: with the type in its text.
    """
    strange = next((t for t in types if words(t) != "all"), None)
    if strange is None:
        return
    if not isinstance(spec, LoopNest) or any(words(t) == "none" for t in types):
        raise NotNative(f"computing on {strange}")
    for s in spec.body:
        if words(s.dtype) == "all":
            continue
        # Which integer a float becomes that does not fit, only torch knows.
        whole = isinstance(s, Cast) and TYPES[spec.body[s.args[0]].dtype].kind != "float"
        moved = (isinstance(s, Load) and not s.args) or isinstance(s, Store)
        if not whole and not moved:
            raise NotNative(f"{s.op} on {s.dtype}")


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Row-major without gaps (dimensions of extent 1 do not count)."""
    step = 1
    for d, s in zip(reversed(shape), reversed(strides), strict=True):
        if d == 0:
            return True
        if d != 1:
            if s != step:
                return False
            step *= d
    return True


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the strides cover a block without gaps or overlap, in some order of dimensions."""
    step = 1
    for s, d in sorted((s, d) for s, d in zip(strides, shape, strict=True) if d != 1):
        if s != step:
            return False
        step *= d
    return True


def view_strides(shape: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of a view of another shape, or None where only a copy can do it (as torch's ``computeStride``)."""
    if math.prod(shape) == 0:
        return contiguous(new)
    runs: list[tuple[int, int]] = []  # (elements, step) of old dimensions that are contiguous among themselves
    for d, s in zip(shape, strides, strict=True):
        if d == 1:
            continue
        if runs and runs[-1][1] == s * d:
            runs[-1] = (runs[-1][0] * d, s)
        else:
            runs.append((d, s))
    result = [1] * len(new)
    j = len(new) - 1
    for count, step in reversed(runs):
        left = count
        while left > 1:
            while new[j] == 1:
                j -= 1
            if left % new[j]:
                return None
            result[j] = step * (count // left)
            left //= new[j]
            j -= 1
    return tuple(result)
