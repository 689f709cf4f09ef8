"""Statements of an epilogue as scalars: those that are the same along a vector, and loops over a vector's lanes."""

from __future__ import annotations

from dcir.codegen.cpp.scalar_ops import CPP_TYPE, SCALAR_OPS, cast_expr, element, literal
from dcir.codegen.cpp.tiles.epilogue.bound_program import BoundProgram
from dcir.ir.statements import Access, Cast, Const, Gather, Index, Load, Narrow, Statement, Store
from dcir.ir.types import compute_type


def lane_statements(b: BoundProgram) -> dict[str, str]:
    """C++ of a vector's lanes: before all vectors, before and inside the loop over lanes, and after it."""
    p, varies = b.program, b.varies
    uniform: list[str] = []
    before: list[str] = []
    inside: list[str] = []
    after: list[str] = []
    for i, s in enumerate(p.body):
        if not varies[i]:
            uniform += scalar(b, i, s, "")
            continue
        step, at = 0, ""
        if isinstance(s, Access):
            step = s.strides[b.vector]
            at = b.address(s, f" + s * {step}LL" if step else "")
        if isinstance(s, Load) and s.operand == 0:
            inside.append(f"const T v{i} = t{i}[c];")
            before.append(f"alignas(64) T c{i}[VL]; const T *t{i} = fetch(t + s, 1, left, c{i});")
        elif isinstance(s, Load) and not s.args and step:
            kind = CPP_TYPE[p.inputs[s.operand]]
            before.append(
                f"alignas(64) {kind} c{i}[VL]; const {kind} *t{i} = fetch(e.a{s.operand} + {at}, {step}, left, c{i});"
            )
            value = cast_expr(element(f"t{i}", "c", p.inputs[s.operand]), p.inputs[s.operand], s.dtype)
            inside.append(f"const {CPP_TYPE[s.dtype]} v{i} = {value};")
        elif isinstance(s, Store):
            kind, value = CPP_TYPE[s.dtype], cast_expr(b.name(s.args[0]), compute_type(s.dtype), s.dtype)
            whole = f"{step} == 1 && left == VL"
            before.append(
                f"{kind} *p{i} = e.o{s.operand} + {at}; alignas(64) {kind} c{i}[VL], *t{i} = {whole} ? p{i} : c{i};"
            )
            inside.append(f"t{i}[c] = {value};")
            after.append(f"put_back(p{i}, {step}, left, c{i});")
        else:
            inside += scalar(b, i, s, f" + (s + c) * {step}LL" if step else "")
    pads = {"uniform": 4, "before": 8, "statements": 12, "after": 8}
    texts = (uniform, before, inside, after)
    return {k: "\n".join(" " * pad + t for t in lines) for (k, pad), lines in zip(pads.items(), texts, strict=True)}


def scalar(b: BoundProgram, i: int, s: Statement, lane: str) -> list[str]:
    """A statement of scalars; ``lane`` is what the lane adds to an address (set inside the loop over lanes only)."""
    p = b.program
    if isinstance(s, (Const, Index)):
        return []
    varying = b.varies[i]
    guard = "c < left" if varying else "true"
    if isinstance(s, Load):
        kind = p.inputs[s.operand]
        text = cast_expr(element(f"e.a{s.operand}", b.address(s, lane), kind), kind, s.dtype)
        if s.args:
            text = f"({guard}) & {b.name(s.args[0])} ? {text} : {b.name(s.args[1])}"
        elif varying and lane:
            text = f"{guard} ? {text} : {literal(0, s.dtype)}"
    elif isinstance(s, Gather):
        indices = [b.name(a) for a in s.indices]
        good = [f"((unsigned long long){x} < {e}ULL)" for x, e in zip(indices, s.extents, strict=True)]
        test = " & ".join([f"({guard})", *good, *(b.name(a) for a in s.guard[:1])])
        terms = [f"{x} * {t}LL" for x, t in zip(indices, s.steps, strict=True)]
        found = f"e.a{s.operand}[{' + '.join([b.address(s, lane), *terms])}]"
        other = b.name(s.guard[1]) if s.guard else literal(0, s.dtype)
        text = f"({test}) ? {cast_expr(found, p.inputs[s.operand], s.dtype)} : {other}"
    elif isinstance(s, Cast):
        text = cast_expr(b.name(s.args[0]), p.body[s.args[0]].dtype, s.dtype)
    elif isinstance(s, Narrow):
        text = cast_expr(cast_expr(b.name(s.args[0]), s.dtype, s.storage), s.storage, s.dtype)
    else:
        operand_type = p.body[s.args[1 if s.op == "where" else 0]].dtype
        text = SCALAR_OPS[s.op].cpp([b.name(a) for a in s.args], operand_type)
    return [f"const {CPP_TYPE[s.dtype]} v{i} = {text};"]
