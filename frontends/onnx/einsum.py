"""The grammar of Einsum's equations: read here, so that no other text reaches what computes them."""

from __future__ import annotations

import re
from typing import Any

from dcir.errors import InvalidModel, TypeMismatch
from dcir.frontends.onnx.tensors import show

_FOREIGN = re.compile(r"[^A-Za-z.,\-> ]")
_TERM = re.compile(r"([A-Za-z]*)(\.\.\.)?([A-Za-z]*)")
_HINT = "an equation such as 'ij,jk->ik' or '...ij->...ji'"


def check_equation(equation: str, operands: int, label: str) -> None:
    """Hold an equation against the grammar: terms of letters with one ellipsis at most, perhaps an arrow and a result.

    Raises:
        InvalidModel: it is none, or has another number of terms than there are operands.
    """
    foreign = _FOREIGN.search(equation)
    if foreign is not None:
        raise _wrong(equation, f"holds {show(foreign[0])}", label)
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    for term in (*terms, right):
        if _TERM.fullmatch(term) is None:
            raise _wrong(equation, f"has a term {show(term)}", label)
    if len(terms) != operands:
        raise _wrong(equation, f"has {len(terms)} terms for {operands} operands", label)
    if not arrow:
        return
    letters = right.replace(".", "")
    if len(set(letters)) != len(letters) or not set(letters) <= set(left):
        raise _wrong(equation, f"has a result {show(right)}, not of letters of its terms, once each", label)
    if "..." in right and "..." not in left:
        raise _wrong(equation, "has an ellipsis in its result alone", label)


def _wrong(equation: str, what: str, label: str) -> InvalidModel:
    return InvalidModel(f"attribute 'equation' is {show(equation)}, which {what}", where=label, hint=_HINT)


def check_terms(node: Any, *operands: Any) -> None:
    """Hold operands against their terms: a letter for each dimension, and one size for each letter."""
    left = node["equation"].replace(" ", "").partition("->")[0]
    sizes: dict[str, Any] = {}
    for number, (term, operand) in enumerate(zip(left.split(","), operands, strict=True)):
        before, dots, after = term.partition("...")
        rest = operand.ndim - len(before) - len(after)
        if rest < 0 or (rest > 0 and not dots):
            message = f"operand {number} has shape {list(operand.shape)}, its term in 'equation' is {term!r}"
            raise TypeMismatch(message, hint="a letter for each dimension")
        named = list(zip(before, operand.shape, strict=False))
        named += zip(reversed(after), reversed(operand.shape), strict=False)
        for letter, size in named:
            known = sizes.setdefault(letter, size)
            if known != size and 1 not in (known, size):
                message = f"{letter!r} of 'equation' is {known} and {size}"
                raise TypeMismatch(message, hint="operands whose dimensions of one letter agree")
            sizes[letter] = size if known == 1 else known
