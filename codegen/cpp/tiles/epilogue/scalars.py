"""Statements of an epilogue as scalars: those that are the same along a vector, and loops over a vector's lanes."""

from __future__ import annotations

from dcir.codegen.cpp.scalar_ops import CPP_TYPE, SCALAR_OPS, cast_expr, element, literal
from dcir.codegen.cpp.tiles.epilogue.bound_program import BoundProgram
from dcir.ir.loop_nest import Stmt
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
        step = s.attr[1][b.vector] if s.op in ("load", "store", "gather") else 0
        at = b.address(s, f" + s * {step}LL") if step else b.address(s) if s.op in ("load", "store") else ""
        if s.op == "load" and s.attr[0] == 0:
            inside.append(f"const T v{i} = t{i}[c];")
            before.append(f"alignas(64) T c{i}[VL]; const T *t{i} = fetch(t + s, 1, left, c{i});")
        elif s.op == "load" and not s.args and step:
            kind = CPP_TYPE[p.inputs[s.attr[0]]]
            before.append(
                f"alignas(64) {kind} c{i}[VL]; const {kind} *t{i} = fetch(e.a{s.attr[0]} + {at}, {step}, left, c{i});"
            )
            value = cast_expr(element(f"t{i}", "c", p.inputs[s.attr[0]]), p.inputs[s.attr[0]], s.dtype)
            inside.append(f"const {CPP_TYPE[s.dtype]} v{i} = {value};")
        elif s.op == "store":
            kind, value = CPP_TYPE[s.dtype], cast_expr(b.name(s.args[0]), compute_type(s.dtype), s.dtype)
            whole = f"{step} == 1 && left == VL"
            before.append(
                f"{kind} *p{i} = e.o{s.attr[0]} + {at}; alignas(64) {kind} c{i}[VL], *t{i} = {whole} ? p{i} : c{i};"
            )
            inside.append(f"t{i}[c] = {value};")
            after.append(f"put_back(p{i}, {step}, left, c{i});")
        else:
            inside += scalar(b, i, s, f" + (s + c) * {step}LL" if step else "")
    pads = {"uniform": 4, "before": 8, "statements": 12, "after": 8}
    texts = (uniform, before, inside, after)
    return {k: "\n".join(" " * pad + t for t in lines) for (k, pad), lines in zip(pads.items(), texts, strict=True)}


def scalar(b: BoundProgram, i: int, s: Stmt, lane: str) -> list[str]:
    """A statement of scalars; ``lane`` is what the lane adds to an address (set inside the loop over lanes only)."""
    p = b.program
    if s.op in ("const", "index"):
        return []
    varying = b.varies[i]
    guard = "c < left" if varying else "true"
    if s.op == "load":
        kind = p.inputs[s.attr[0]]
        text = cast_expr(element(f"e.a{s.attr[0]}", b.address(s, lane), kind), kind, s.dtype)
        if s.args:
            text = f"({guard}) & {b.name(s.args[0])} ? {text} : {b.name(s.args[1])}"
        elif varying and lane:
            text = f"{guard} ? {text} : {literal(0, s.dtype)}"
    elif s.op == "gather":
        operand, _, extents, steps, _ = s.attr
        indices, rest = s.args[: len(extents)], s.args[len(extents) :]
        good = [f"((unsigned long long){b.name(a)} < {e}ULL)" for a, e in zip(indices, extents, strict=True)]
        test = " & ".join([f"({guard})", *good, *([b.name(rest[0])] if rest else [])])
        at = " + ".join([b.address(s, lane), *(f"{b.name(a)} * {t}LL" for a, t in zip(indices, steps, strict=True))])
        other = b.name(rest[1]) if rest else literal(0, s.dtype)
        text = f"({test}) ? {cast_expr(f'e.a{operand}[{at}]', p.inputs[operand], s.dtype)} : {other}"
    elif s.op == "cast":
        text = cast_expr(b.name(s.args[0]), p.body[s.args[0]].dtype, s.dtype)
    elif s.op == "narrow" and s.attr:
        text = cast_expr(cast_expr(b.name(s.args[0]), s.dtype, s.attr[0]), s.attr[0], s.dtype)
    else:
        operand_type = p.body[s.args[1 if s.op == "where" else 0]].dtype
        text = SCALAR_OPS[s.op].cpp([b.name(a) for a in s.args], operand_type)
    return [f"const {CPP_TYPE[s.dtype]} v{i} = {text};"]
