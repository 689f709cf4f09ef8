"""A program of DaCe as a PyTorch operator: read as loop nests, fused like others, differentiated by PyTorch or by the user.

    @dace.program
    def swish(x: dace.float32[N, M]):
        return x / (1 + np.exp(-x))

    swish = dcir.dace_operator(swish)     # of tensors, in eager PyTorch and in everything that dcir compiles

The program is read once for each combination of shapes. Its loop nests become functions of torch (``torch_form.py``), so capture traces
through them, and what arrives in the network are loop nests again, beside those around them. DaCe's own differentiation is not asked: it
is wrong in places, and PyTorch's holds for all of the nests.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dace
import torch
from dace.libraries.blas import MatMul
from dace.transformation.interstate import LoopUnroll

from dcir.errors import InvalidInput, OptionError, Unsupported
from dcir.frontends.dace.torch_form import Arrays, run_nest
from dcir.ir.dace.objects import DACE_TYPES
from dcir.ir.dace.read_maps import Piece, read_sdfg
from dcir.ops.torch_types import FROM_NAME, TORCH_TYPES

_NAMES = {DACE_TYPES[name]: name for name in ("f32", "f64", "f16", "i64", "i32", "i16", "i8", "u8", "bool")}


class DaceOperator:
    """A program as a function of tensors. Tensors of any layout come in, results have rows without gaps.

    Attributes:
        name: the program's.
        arguments: names of what is given, in order.
        results: names of the arrays that come back: what the program returns, then ``outputs``.
    """

    def __init__(self, program: Any, outputs: Sequence[str], backward: Callable[..., Any] | None) -> None:
        sdfg = _parsed(program)
        self.name: str = sdfg.name
        returned = sorted(n for n in sdfg.arrays if n.startswith("__return"))
        missing = [n for n in outputs if n not in sdfg.arrays]
        if missing:
            raise OptionError(
                f"the program {self.name} has no array {missing[0]!r}",
                where="outputs",
                hint="one of " + ", ".join(sdfg.arrays),
            )
        self.results = (*returned, *outputs)
        if not self.results:
            raise OptionError(
                f"the program {self.name} returns nothing",
                where="dace_operator",
                hint='outputs=("name",) says what it writes',
            )
        names = [n for n in sdfg.arg_names if n in sdfg.arrays] or [n for n in sdfg.arglist() if n in sdfg.arrays]
        self.arguments = tuple(n for n in names if n not in self.results)
        self._sdfg, self._read = sdfg, dict[object, tuple[Any, list[Piece]]]()
        self._backward = backward
        self._call = torch.compiler.allow_in_graph(self._traced())

    def __call__(self, *tensors: Any) -> Any:
        """Run it.

        Args:
            tensors: one for each of ``arguments``; a number for a scalar.

        Returns:
            A tensor, or a tuple of several.

        Raises:
            InvalidInput: other types or sizes than the program declares.
            Unsupported: what it does has no loop nests, with its place.
        """
        return self._call(*tensors)

    def _traced(self) -> Callable[..., Any]:
        """A plain function, which is all that capture takes as one node."""
        if self._backward is None:

            def call(*tensors: Any) -> Any:
                return self._run(tensors)

            return call
        run, backward = self._run, self._backward

        class WithGradient(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *tensors: Any) -> Any:
                ctx.save_for_backward(*tensors)
                return run(tensors)

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                found = backward(*ctx.saved_tensors, *gradients)
                return tuple(found) if isinstance(found, tuple | list) else (found,)

        def differentiated(*tensors: Any) -> Any:
            return WithGradient.apply(*tensors)  # type: ignore[no-untyped-call]

        return differentiated

    def _run(self, tensors: Sequence[Any]) -> Any:
        if len(tensors) != len(self.arguments):
            raise InvalidInput(
                f"{self.name} takes {len(self.arguments)} arguments, {len(tensors)} were given",
                where=", ".join(self.arguments),
            )
        given = [t if isinstance(t, torch.Tensor) else torch.tensor(t) for t in tensors]
        sdfg, pieces = self._pieces(given)
        arrays: Arrays = {n: t.reshape(_shape(sdfg.arrays[n])) for n, t in zip(self.arguments, given, strict=True)}
        for name, desc in sdfg.arrays.items():
            if name not in arrays:
                arrays[name] = torch.zeros(
                    _shape(desc), dtype=FROM_NAME[_NAMES[desc.dtype]], device=given[0].device if given else None
                )
        for p in pieces:
            if p.nest is not None:
                run_nest(p.nest, p.ins, p.outs, arrays)
            else:
                _multiply(p, arrays)
        found = tuple(arrays[n] for n in self.results)
        return found if len(found) > 1 else found[0]

    def _pieces(self, given: Sequence[torch.Tensor]) -> tuple[Any, list[Piece]]:
        """The program for these shapes, and its nests."""
        sizes: dict[str, int] = {}
        for plain in (True, False):  # sizes that are symbols, then extents that follow from these
            for name, t in zip(self.arguments, given, strict=True):
                self._match(name, t, sizes, plain=plain)
        key = tuple(sorted(sizes.items()))
        if key not in self._read:
            open_sizes = [str(s) for s in self._sdfg.free_symbols if str(s) not in sizes]
            if open_sizes:
                raise InvalidInput(
                    f"no argument of {self.name} has the size {open_sizes[0]}",
                    where=self.name,
                    hint="give the array that has it",
                )
            found = _at(self._sdfg, sizes)
            self._check(found[1])
            self._read[key] = found
        return self._read[key]

    def _check(self, pieces: Sequence[Piece]) -> None:
        """Refuse what an operator cannot do: change its arguments, or begin with what was in its results."""
        written: set[str] = set()
        for p in pieces:
            for o in p.ins:
                if o.data in self.results and o.data not in written:
                    raise Unsupported.collect([(f"the result {o.data}, which is read before it is written", self.name)])
            for o in p.outs:
                if o.data in self.arguments:
                    raise Unsupported.collect(
                        [(f"the argument {o.data}, which is written and is no result", self.name)]
                    )
                written.add(o.data)

    def _match(self, name: str, t: torch.Tensor, sizes: dict[str, int], *, plain: bool) -> None:
        """Sizes of the program from the extents of an argument."""
        desc = self._sdfg.arrays[name]
        wanted = [] if isinstance(desc, dace.data.Scalar) else list(desc.shape)
        dtype = _NAMES.get(desc.dtype)
        if dtype is None or TORCH_TYPES.get(t.dtype) != dtype:
            if isinstance(desc, dace.data.Scalar) and t.dim() == 0:
                return
            raise InvalidInput(f"argument {name} of {self.name} is {desc.dtype}, not {t.dtype}", where=name)
        if t.dim() != len(wanted):
            raise InvalidInput(
                f"argument {name} of {self.name} has {len(wanted)} dimensions, not {t.dim()}", where=name
            )
        for extent, size in zip(wanted, t.shape, strict=True):
            n, is_symbol = int(size), bool(getattr(extent, "is_Symbol", False))
            if is_symbol:
                known = sizes.setdefault(str(extent), n)
            elif plain or any(str(x) not in sizes for x in dace.symbolic.symlist(extent)):
                continue
            else:
                known = int(dace.symbolic.evaluate(extent, {dace.symbol(k): v for k, v in sizes.items()}))
            if known != n:
                raise InvalidInput(
                    f"argument {name} of {self.name} has an extent of {n} where {extent} is {known}", where=name
                )


def dace_operator(
    program: Any, *, outputs: Sequence[str] = (), backward: Callable[..., Any] | None = None
) -> DaceOperator:
    """A ``@dace.program``, or an SDFG, as an operator.

    Args:
        program: with sizes as DaCe's symbols, or constant. Maps and what DaCe's Python frontend makes of NumPy; loops of constant length.
        outputs: arrays among its arguments that it only writes: they are results, in this order, behind what it returns.
        backward: gradients of all arguments from all arguments and the gradients of all results; None: PyTorch's.

    Raises:
        OptionError: it is no program, or has no results; or ``backward`` cannot be called.
    """
    if backward is not None and not callable(backward):
        raise OptionError(
            f"{backward!r} gives no gradients", where="dace_operator(backward=)",
            hint="a function of all arguments and the gradients of all results",
        )  # fmt: skip
    return DaceOperator(program, outputs, backward)


def _parsed(program: Any) -> Any:
    if isinstance(program, dace.SDFG):
        return copy.deepcopy(program)
    if not hasattr(program, "to_sdfg"):
        raise OptionError(
            f"{program!r} is no program of DaCe", where="dace_operator", hint="decorate it with @dace.program"
        )
    return program.to_sdfg(simplify=True)


def _at(sdfg: Any, sizes: Mapping[str, int]) -> tuple[Any, list[Piece]]:
    """The SDFG at constant sizes, and its nests."""
    sdfg = copy.deepcopy(sdfg)
    sdfg.replace_dict({name: str(size) for name, size in sizes.items()})
    sdfg.apply_transformations_repeated(LoopUnroll)
    for node, state in list(sdfg.all_nodes_recursive()):
        if isinstance(node, dace.nodes.LibraryNode) and not isinstance(node, MatMul | dace.libraries.standard.Reduce):
            node.expand(state)
    sdfg.simplify()
    dace.sdfg.propagation.propagate_memlets_sdfg(sdfg)
    return sdfg, read_sdfg(sdfg, {})


def _shape(desc: Any) -> tuple[int, ...]:
    return (1,) if isinstance(desc, dace.data.Scalar) else tuple(map(int, desc.shape))


def _multiply(p: Piece, arrays: Arrays) -> None:
    """A matrix product, which has kernels of its own."""
    node = p.node
    if not isinstance(node, MatMul) or node.alpha != 1 or node.beta != 0:
        raise Unsupported.collect([(f"a {type(node).__name__} of DaCe as an operator", p.label)])
    a, b = (arrays[o.data] for o in p.ins)
    arrays[p.outs[0].data] = a @ b
