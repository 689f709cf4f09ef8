"""Loop nests as JSON and back, and files that do not hold what they must."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest

from dcir.errors import InvalidGraph
from dcir.ir.loop_nest import LoopNest
from dcir.ir.scalars import TABLE
from dcir.ir.serialize import decode, encode
from dcir.ir.statements import REDUCTIONS, Compute, Const, Index, Load, Reduce, Statement, Store
from tests.ir.test_statements import EXAMPLES


def back(value: Any) -> Any:
    """``value`` through a file."""
    return decode(json.loads(json.dumps(encode(value))))


@pytest.mark.parametrize("s", EXAMPLES, ids=lambda s: type(s).__name__)
def test_every_kind_comes_back(s: Statement) -> None:
    assert back(s) == s and type(back(s)) is type(s)


@pytest.mark.parametrize("value", [True, False, 0, -7, 0.0, -0.0, 1.5, math.inf, -math.inf, math.nan])
def test_numbers_keep_their_type_and_sign(value: float) -> None:
    assert back(Const(value, "f32")) == Const(value, "f32")


def test_every_operator_comes_back() -> None:
    statements = [*(Compute(op, "f32", (0,)) for op in TABLE), *(Reduce(k, "f32", (0,)) for k in REDUCTIONS)]
    assert list(back(statements)) == statements


def test_a_loop_nest_comes_back() -> None:
    body = (Load(0, (4, 1), "f32"), Reduce("max", "f32", (0,)), Store(0, (1, 0), "f32", (1,)))
    p = LoopNest((3,), (4,), ("f32",), ("f32",), body)
    assert back(p) == p and hash(back(p)) == hash(p)
    assert encode(p)["v"]["body"][0] == {"s": "load", "operand": 0, "strides": [4, 1], "dtype": "f32", "args": []}


LOAD = encode(Load(0, (4, 1), "f32"))
BROKEN = [
    (LOAD, {"s": "jump"}, "unknown statement 'jump'"),
    (LOAD, {"s": 3}, "unknown statement 3"),
    (LOAD, {"s": {}}, "unknown statement"),
    (LOAD, {"s": ["load", [], "f32", [0, [4, 1]]]}, "an older dcir"),
    (LOAD, {"more": 1}, "a saved load statement must have the fields"),
    (LOAD, {"args": KeyError}, "a saved load statement must have the fields"),
    (LOAD, {"operand": "0"}, "operand of a saved load statement cannot be '0'"),
    (LOAD, {"operand": True}, "operand of a saved load statement cannot be True"),
    (LOAD, {"operand": 1.0}, "operand of a saved load statement cannot be 1.0"),
    (LOAD, {"strides": 4}, "strides of a saved load statement cannot be 4"),
    (LOAD, {"strides": [4, 1.5]}, "strides of a saved load statement cannot be"),
    (LOAD, {"strides": [4, True]}, "strides of a saved load statement cannot be"),
    (LOAD, {"dtype": None}, "dtype of a saved load statement cannot be None"),
    (encode(Index(0)), {"dim": [0]}, "dim of a saved index statement cannot be"),
    (encode(Const(1, "i64")), {"value": "1"}, "value of a saved const statement cannot be '1'"),
    (encode(Const(1, "i64")), {"value": None}, "value of a saved const statement cannot be None"),
    (encode(EXAMPLES[3]), {"checked": 1}, "checked of a saved gather statement cannot be 1"),
    (encode(EXAMPLES[5]), {"kind": "median"}, "kind of a saved reduce statement cannot be 'median'"),
    (encode(EXAMPLES[7]), {"storage": "f8"}, "storage of a saved narrow statement cannot be 'f8'"),
    (encode(EXAMPLES[8]), {"op": "system"}, "op of a saved compute statement cannot be 'system'"),
    (encode(EXAMPLES[8]), {"op": ["add"]}, "op of a saved compute statement cannot be"),
]


@pytest.mark.parametrize(("data", "change", "message"), BROKEN, ids=[str(c) for _, c, _ in BROKEN])
def test_what_is_broken_is_refused(data: dict[str, Any], change: dict[str, Any], message: str) -> None:
    data = copy.deepcopy(data) | change
    data = {k: v for k, v in data.items() if v is not KeyError}
    with pytest.raises(InvalidGraph, match=message):
        decode(data)


def test_unknown_content_is_refused() -> None:
    with pytest.raises(InvalidGraph, match="unknown node content"):
        decode({"c": "Path", "v": {}})
    with pytest.raises(TypeError, match="cannot encode"):
        encode(object())
