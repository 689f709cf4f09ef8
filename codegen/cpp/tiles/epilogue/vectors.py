"""Statements of an epilogue as vectors: which have that form, their C++, and the functions they call."""

from __future__ import annotations

import numpy as np

from dcir.codegen.cpp.scalar_ops import literal
from dcir.codegen.cpp.template import INLINE, templates
from dcir.codegen.cpp.tiles.emit import HALF, lanes
from dcir.codegen.cpp.tiles.epilogue.bound_program import CHAINS, BoundProgram
from dcir.codegen.cpp.tiles.epilogue.halves import half_vectors
from dcir.codegen.cpp.tiles.epilogue.scalars import scalar
from dcir.ir.statements import Cast, Const, Load, Narrow, Statement, Store
from dcir.isa import Isa

text_of = templates("epilogue/epilogue")

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="
}  # fmt: skip
_LOGICAL = {"and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}", "not": "~{}"}
# NaN wins: a comparison with it is false. With a constant on one side one comparison will do.
_EXTREME = {"max": ">", "min": "<"}


def is_simple(b: BoundProgram, i: int) -> bool:
    """Whether a statement that varies has a form for vectors."""
    s, body = b.program.body[i], b.program.body
    types = (b.dtype, "bool")
    stored = (*types, *HALF) if b.dtype == "f32" else types
    given = [body[a].dtype for a in s.args]
    if isinstance(s, Load):
        return not s.args and s.dtype in types and b.program.inputs[s.operand] in stored
    if isinstance(s, Store):
        return s.dtype in stored
    if isinstance(s, Narrow):
        return s.dtype == b.dtype == "f32" and s.storage in HALF
    if isinstance(s, Cast):
        return given == ["bool"] and s.dtype == b.dtype
    if any(t not in types for t in (s.dtype, *given)):
        return False
    if s.op in _LOGICAL:
        return all(t == "bool" for t in given)
    if s.op in CHAINS:
        return b.dtype == "f32"
    if s.op == "where":
        return True
    return (s.op in _INFIX or s.op in _EXTREME or s.op in ("neg", "abs", "fma")) and given[0] == b.dtype


def all_simple(b: BoundProgram) -> bool:
    """Whether all statements that vary have a form for vectors."""
    return all(is_simple(b, i) for i, varies in enumerate(b.varies) if varies)


def roundings(b: BoundProgram) -> set[tuple[int, str]]:
    """Vectors that are rounded, and the half types they are rounded to."""
    varies = b.varies
    return {
        (s.args[0], s.storage if isinstance(s, Narrow) else s.dtype)
        for i, s in enumerate(b.program.body)
        if varies[i] and (isinstance(s, Narrow) or (isinstance(s, Store) and s.dtype in HALF))
    }


def vector_lines(b: BoundProgram) -> list[list[str]]:
    """C++ of every statement."""
    p, varies, found = b.program, b.varies, list[list[str]]()
    for i, s in enumerate(p.body):
        if not varies[i]:
            found.append(scalar(b, i, s, ""))
            continue
        if s.dtype == "f64" != b.dtype:  # of sums, which are not stored
            found.append([])
            continue
        args = [as_vector(b, a) for a in s.args]
        if isinstance(s, Store):
            found.append([_stored(b, s, args[0])])
            continue
        found.append([f"const {kind_of(b, i)} v{i} = {_value(b, s, args)};"])
    return found


def _stored(b: BoundProgram, s: Store, vector: str) -> str:
    """C++ that stores a vector."""
    step = s.strides[b.vector]
    at = f"e.o{s.operand} + {b.address(s)}"
    if s.dtype == "bool":
        return f"put_bool<WHOLE>({at}, {step}, {vector}, n);"
    if s.dtype in HALF:
        value = vector if s.dtype == "f16" else f"round_{s.dtype}({vector})"
        return f"put_halves<WHOLE>({at}, {step}LL, bits_of_{s.dtype}({value}), n);"
    if step == 1:
        return f"put<WHOLE>({at}, {vector}, n);"
    return f"put_apart<WHOLE>({at}, {step}LL, {vector}, n);"


def kind_of(b: BoundProgram, i: int) -> str:
    """The C++ type of a value as a vector."""
    return "M" if b.program.body[i].dtype == "bool" else "V"


def _value(b: BoundProgram, s: Statement, args: list[str]) -> str:
    if isinstance(s, Load):
        return _loaded(b, s)
    if isinstance(s, Cast):
        return f"{args[0]} ? splat(1) : splat(0)"
    if isinstance(s, Narrow):
        return f"round_{s.storage}({args[0]})"
    if s.op == "where":
        return f"{args[0]} ? {args[1]} : {args[2]}"
    if s.op in _LOGICAL:
        return _LOGICAL[s.op].format(*args)
    if s.op == "fma":
        return f"{args[0]} * {args[1]} + {args[2]}"
    if s.op == "neg":
        return f"-{args[0]}"
    if s.op in CHAINS:
        return f"{s.op}_of({args[0]})"
    if s.op == "abs":
        return f"(V)((M){args[0]} & ~(M)splat(-0.0))"
    if s.op in _EXTREME:
        sign, (x, y) = _EXTREME[s.op], args
        for constant, other, a in ((x, y, s.args[0]), (y, x, s.args[1])):
            value = b.program.body[a]
            if isinstance(value, Const) and value.value == value.value:
                return f"{'larger' if s.op == 'max' else 'smaller'}({constant}, {other})"
        return f"({x} {sign} {y}) | ({x} != {x}) ? {x} : {y}"
    return f"{args[0]} {_INFIX[s.op]} {args[1]}"


def _loaded(b: BoundProgram, s: Load) -> str:
    """What is read, as a vector."""
    if s.operand == 0:
        return "x"
    step, at = s.strides[b.vector], f"e.a{s.operand} + {b.address(s)}"
    kind = b.program.inputs[s.operand]
    if kind == "bool":
        return f"get_bool<WHOLE>({at}, {step}, n)"
    if kind in HALF:
        return f"widen_{kind}(get_halves<WHOLE>({at}, {step}LL, n))"
    return f"get<WHOLE>({at}, n)" if step == 1 else f"get_apart<WHOLE>({at}, {step}LL, n)"


def read_back(b: BoundProgram, store: Store) -> str:
    """A C++ expression of what was stored: a vector of n lanes."""
    step, at = store.strides[b.vector], f"e.o{store.operand} + {b.address(store)}"
    return f"get<WHOLE>({at}, n)" if step == 1 else f"get_apart<WHOLE>({at}, {step}LL, n)"


def as_vector(b: BoundProgram, i: int) -> str:
    """A value as a vector."""
    if b.varies[i]:
        return f"v{i}"
    return f"{'all_or_none' if b.program.body[i].dtype == 'bool' else 'splat'}({b.name(i)})"


def vector_math(b: BoundProgram, isa: Isa) -> str:
    """What vector statements call."""
    wide = isa.vectors == "avx512"
    kind, mask = ("ps", "short") if b.dtype == "f32" else ("pd", "char")
    text = f"{INLINE} V splat(T x) {{ return V{{{', '.join('x' * lanes(isa, b.dtype))}}}; }}"
    text += text_of.extremes(
        {
            name: f"__builtin_ia32_{op}{kind}512_mask(a, x, V{{}}, (unsigned {mask})-1, 4)"
            if wide
            else f"a {sign} x ? a : x"
            for name, op, sign in (("larger", "max", ">"), ("smaller", "min", "<"))
        }
    )
    chains = {b.program.body[i].op for i in b.chains} if b.dtype == "f32" else set()
    if "exp" in chains:
        powers = ", ".join(literal(float(np.float32(2 ** (i / 16))), "f32") for i in range(16))
        text += text_of.exponentials_512(powers=powers) if wide else text_of.exponentials()
    if "erf" in chains:
        text += text_of.errors()
    for op in sorted(chains):
        text += f"{INLINE} V {op}_of(V x) {{ V v[1] = {{x}}; {CHAINS[op]}(v); return v[0]; }}\n"
    return text + half_vectors(_halves(b), isa)


def _halves(b: BoundProgram) -> set[str]:
    """Half types of vectors."""
    p, varies = b.program, b.varies
    loads = {p.inputs[s.operand] for s, v in zip(p.body, varies, strict=True) if v and isinstance(s, Load)}
    return {t for t in loads if t in HALF} | {t for _, t in roundings(b)}
