"""Tasklet code read as scalar statements: the words of ``tasklets.py``, and what people and DaCe's Python frontend write."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

import numpy as np

from dcir.errors import Unsupported
from dcir.ir.dace.tasklet_values import Affine, Known, Pointer, StatementList, Value, affine_value
from dcir.ir.dace.tasklets import DACE_NAMES
from dcir.ir.scalars import TABLE, reference
from dcir.ir.statements import Compute, Const, Narrow
from dcir.ir.types import FLOATS, HALVES, TYPES

_TYPES = {name: key for key, name in DACE_NAMES.items()} | {
    "bool": "bool", "float": "f64", "int": "i64", "float16": "f16", "double": "f64",
}  # fmt: skip
_BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "idiv_floor", ast.Mod: "mod", ast.Pow: "pow",
    ast.BitAnd: "bitand", ast.BitOr: "bitor", ast.BitXor: "bitxor", ast.LShift: "shl", ast.RShift: "shr",
}  # fmt: skip
_COMPARE = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
_FUNCTIONS = {
    **{name: name for name in TABLE}, "fabs": "abs", "maximum": "max", "minimum": "min", "int_floor": "idiv_floor", "power": "pow",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "rint": "round",
}  # fmt: skip


class TaskletReader:
    """Reads the code of one tasklet into a body.

    Attributes:
        names: what names mean: values, literals, indices; assigned ones come on top.
        pointers: what connectors to whole arrays mean.
    """

    def __init__(
        self, body: StatementList, names: Mapping[str, Known | Affine], pointers: Mapping[str, Pointer], where: str
    ) -> None:
        self.body, self.names, self.pointers, self.where = body, dict(names), pointers, where

    def run(self, statements: Sequence[ast.stmt]) -> dict[str, Known | Affine]:
        """Read all statements; the meaning of all names behind them.

        Raises:
            Unsupported: what has no scalar statement.
        """
        for s in statements:
            if isinstance(s, ast.Assign) and len(s.targets) == 1:
                target, value = s.targets[0], s.value
            elif isinstance(s, ast.AnnAssign) and s.value is not None:
                target, value = s.target, s.value
            else:
                raise self._refuse(s)
            if isinstance(target, ast.Subscript) and _zero(target.slice):
                target = target.value  # DaCe writes arrays of one element in this way
            if not isinstance(target, ast.Name):
                raise self._refuse(s)
            found = self._read(value)
            self.names[target.id] = found
        return self.names

    def _refuse(self, node: ast.AST) -> Unsupported:
        return Unsupported.collect([(f"tasklet code {ast.unparse(node)[:80]!r} as scalar statements", self.where)])

    def _number(self, node: ast.expr) -> Known:
        found = self._read(node)
        return affine_value(self.body, found) if isinstance(found, Affine) else found

    def _read(self, node: ast.expr) -> Known | Affine:
        if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            return node.value
        if isinstance(node, ast.Name):
            if node.id in ("True", "False"):
                return node.id == "True"
            if node.id not in self.names:
                raise self._refuse(node)
            return self.names[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return self._binary(_BINARY[type(node.op)], node)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
            return self._compare(
                _COMPARE[type(node.ops[0])], self._number(node.left), self._number(node.comparators[0])
            )
        if isinstance(node, ast.BoolOp):
            values = [self._truth(self._number(v)) for v in node.values]
            total = values[0]
            for v in values[1:]:
                total = self.body.compute("and" if isinstance(node.op, ast.And) else "or", (total, v), "bool")
            return total
        if isinstance(node, ast.IfExp):
            return self._either(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Subscript):
            return self._element(node, None, 0)
        raise self._refuse(node)

    def _truth(self, x: Known) -> Value:
        return self.body.typed(x, "bool")

    def _binary(self, op: str, node: ast.BinOp) -> Known | Affine:
        a, b = self._read(node.left), self._read(node.right)
        if op in ("add", "sub", "mul") and (isinstance(a, Affine) or isinstance(b, Affine)):
            found = self._walk(op, a, b)
            if found is not None:
                return found
        left = affine_value(self.body, a) if isinstance(a, Affine) else a
        right = affine_value(self.body, b) if isinstance(b, Affine) else b
        if not isinstance(left, Value) and not isinstance(right, Value):
            return _folded(op, left, right)
        kind = self.body.widest((left, right))
        if op == "div" and kind not in FLOATS:
            op = "idiv_trunc"  # as C++ divides
        if op == "pow" and not isinstance(right, Value) and right == 2:
            return self.body.compute("mul", (left, left))
        return self.body.compute(op, (left, right))

    def _walk(self, op: str, a: Known | Affine, b: Known | Affine) -> Affine | None:
        """Sums and multiples of loop variables stay places."""
        if op == "mul":
            if isinstance(b, Affine) and type(a) is int:
                a, b = b, a
            if not isinstance(a, Affine) or type(b) is not int:
                return None
            return Affine(a.constant * b, tuple((d, s * b) for d, s in a.loops), tuple((v, s * b) for v, s in a.values))
        if not all(isinstance(x, Affine) or type(x) is int for x in (a, b)):
            return None
        left, right = (x if isinstance(x, Affine) else Affine(x) for x in (a, b))  # type: ignore[arg-type]
        sign = 1 if op == "add" else -1
        loops = dict(left.loops)
        for d, s in right.loops:
            loops[d] = loops.get(d, 0) + sign * s
        values = (*left.values, *((v, sign * s) for v, s in right.values))
        return Affine(left.constant + sign * right.constant, tuple((d, s) for d, s in loops.items() if s), values)

    def _unary(self, node: ast.UnaryOp) -> Known:
        x = self._number(node.operand)
        if isinstance(node.op, ast.USub):
            return self.body.compute("neg", (x,)) if isinstance(x, Value) else -x
        if isinstance(node.op, ast.Not):
            return self.body.compute("not", (self._truth(x),), "bool")
        if isinstance(node.op, ast.Invert) and isinstance(x, Value):
            return self.body.compute("bitnot", (x,))
        if isinstance(node.op, ast.UAdd):
            return x
        raise self._refuse(node)

    def _compare(self, op: str, a: Known, b: Known) -> Known:
        if isinstance(a, Value) and b == 0 and not isinstance(b, Value) and op in ("eq", "ne"):
            # What tasklets write for "is true" and "is not".
            if op == "ne":
                return self._truth(a)
            if a.dtype == "bool":
                return self.body.compute("not", (a,), "bool")
        if op == "ne" and all(isinstance(x, Value) and x.dtype == "bool" for x in (a, b)):
            return self.body.compute("xor", (a, b), "bool")
        if not isinstance(a, Value) and not isinstance(b, Value):
            return bool(_folded(op, a, b))
        return self.body.compute(op, (a, b))

    def _either(self, node: ast.IfExp) -> Known:
        reads = _subscript(node.body, self.pointers)
        if reads is not None:
            subscript, dtype = reads
            found = self._element(subscript, node.test, self._number(node.orelse))
            return self.body.typed(found, dtype) if dtype else found
        a, b = self._number(node.body), self._number(node.orelse)
        kind = self.body.widest((a, b))
        test = self._truth(self._number(node.test))
        args = (test.n, self.body.typed(a, kind).n, self.body.typed(b, kind).n)
        return self.body.add(Compute("where", kind, args))

    def _element(self, node: ast.Subscript | ast.Name, test: ast.expr | None, other: Known) -> Value:
        name = node.value if isinstance(node, ast.Subscript) else node
        if not isinstance(name, ast.Name) or name.id not in self.pointers:
            raise self._refuse(node)
        at: list[Affine] = []
        if isinstance(node, ast.Subscript):
            for i in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
                x = self._index(i)
                at.append(x)
        mask: Value | None = None
        bounds: dict[int, tuple[int, bool]] = {}
        for part in _conjunction(test):
            known = self._bound(part)
            if known is not None:
                bounds[known[0]] = known[1:]
            else:
                truth = self._truth(self._number(part))
                mask = truth if mask is None else self.body.compute("and", (mask, truth), "bool")
        return self.pointers[name.id](at, mask, other, bounds)

    def _index(self, node: ast.expr) -> Affine:
        """An index of an element: loops and values times steps."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            found = self._walk(
                "add" if isinstance(node.op, ast.Add) else "sub", self._index(node.left), self._index(node.right)
            )
            assert found is not None
            return found
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant):
            found = self._walk("mul", self._index(node.left), self._number(node.right))
            if found is not None:
                return found
        x = self._read(node)
        if isinstance(x, Affine):
            return x
        if isinstance(x, Value):
            return Affine(0, (), ((self.body.typed(x, "i64").n, 1),))
        return Affine(int(x))

    def _bound(self, node: ast.expr) -> tuple[int, int, bool] | None:
        """(value, extent, whether it is an error to lie outside) of a test of ``tasklets.h``."""
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("dcir_checked", "dcir_within")
        ):
            x, extent = self._number(node.args[0]), self._number(node.args[1])
            s = self.body.statements[extent.n] if isinstance(extent, Value) else None
            size = s.value if isinstance(s, Const) else extent
            return self.body.typed(x, "i64").n, int(size), node.func.id == "dcir_checked"  # type: ignore[arg-type]
        return None

    def _call(self, node: ast.Call) -> Known:
        name = _function(node)
        if name in _TYPES and len(node.args) == 1:
            return self._typed(node, _TYPES[name])
        args = [self._number(a) for a in node.args]
        if name in ("dcir_inf", "dcir_nan"):
            return float(name[5:])
        if name.startswith("dcir_from_"):
            return self._widened(args[0], name[10:], node)
        if name.startswith("dcir_to_"):
            kind, x = name[8:], args[0]
            if kind in HALVES:
                return self.body.typed(x, "f32")._replace(bits=kind)
            return self.body.typed(x, kind)
        op = _FUNCTIONS.get(name.removeprefix("dcir_"))
        if op is None or node.keywords:
            raise self._refuse(node)
        if op in ("max", "min") and len(args) > 2:
            total: Known = args[0]
            for a in args[1:]:
                total = self.body.compute(op, (total, a))
            return total
        if op not in (
            "abs",
            "max",
            "min",
            "sign",
            "idiv_floor",
            "idiv_trunc",
            "mod",
            "pow",
            "floor",
            "ceil",
            "trunc",
            "round",
        ) and (self.body.widest(args) not in FLOATS and not name.startswith("dcir_")):
            args = [self.body.typed(a, "f64") for a in args]
        return self.body.compute(op, args)

    def _typed(self, node: ast.Call, dtype: str) -> Known:
        x = self._number(node.args[0])
        if isinstance(x, Value) and x.bits:
            return x  # bits stay what they are
        return self.body.typed(x, dtype)

    def _widened(self, x: Known, storage: str, node: ast.Call) -> Value:
        """A half's bits as a number; what was just narrowed is rounded."""
        if not isinstance(x, Value):
            raise self._refuse(node)
        if x.bits:
            return self.body.add(Narrow(x.bits, "f32", (x.n,)))
        if storage not in HALVES or x.dtype != TYPES[storage].compute:
            raise self._refuse(node)
        return x  # a load has widened it


def _function(node: ast.Call) -> str:
    """The name of what is called, without its module."""
    f = node.func
    return f.attr if isinstance(f, ast.Attribute) else f.id if isinstance(f, ast.Name) else ""


def _zero(node: ast.expr) -> bool:
    return all(
        isinstance(i, ast.Constant) and i.value == 0 for i in (node.elts if isinstance(node, ast.Tuple) else [node])
    )


def _conjunction(test: ast.expr | None) -> list[ast.expr]:
    if (
        test is None
        or (isinstance(test, ast.Constant) and test.value is True)
        or (isinstance(test, ast.Name) and test.id == "True")
    ):
        return []
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [part for v in test.values for part in _conjunction(v)]
    return [test]


def _subscript(node: ast.expr, pointers: Mapping[str, Pointer]) -> tuple[ast.Subscript | ast.Name, str] | None:
    """An element of an array in the types around it."""
    dtype = ""
    while isinstance(node, ast.Call) and len(node.args) == 1:
        name = _function(node)
        if name in _TYPES:
            dtype = dtype or _TYPES[name]
        elif not name.startswith("dcir_from_"):
            return None
        node = node.args[0]
    target = node.value if isinstance(node, ast.Subscript) else node
    if isinstance(node, ast.Subscript | ast.Name) and isinstance(target, ast.Name) and target.id in pointers:
        return node, dtype
    return None


def _folded(op: str, a: Known, b: Known) -> Known:
    result = reference(op)(np.asarray(a), np.asarray(b)).item()
    return result  # type: ignore[no-any-return]
