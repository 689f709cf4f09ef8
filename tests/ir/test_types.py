"""Element types: one table for NumPy, torch, DaCe and C++, and which numbers of one are numbers of another."""

import dace
import numpy as np
import pytest
import torch

from dcir.ir.types import FLOATS, HALVES, INTEGERS, TYPES, keeps_values

REAL = [n for n, t in TYPES.items() if t.kind in ("float", "int", "uint", "bool")]


@pytest.mark.parametrize("name", TYPES)
def test_sizes_are_those_that_others_know(name: str) -> None:
    t = TYPES[name]
    assert getattr(torch, t.torch).itemsize == np.dtype(t.numpy).itemsize == getattr(dace, t.dace).bytes == t.itemsize


@pytest.mark.parametrize("name", [n for n, t in TYPES.items() if t.kind in ("float", "complex")])
def test_epsilon_is_torchs(name: str) -> None:
    assert TYPES[name].epsilon == torch.finfo(getattr(torch, TYPES[name].torch)).eps


def test_arithmetic_is_done_in_types_of_their_own() -> None:
    assert FLOATS == ("f32", "f64") and HALVES == ("bf16", "f16") and set(INTEGERS) == {"i64", "i32", "i16", "i8", "u8"}


@pytest.mark.parametrize("source", REAL)
@pytest.mark.parametrize("target", REAL)
def test_values_are_kept_where_a_way_there_and_back_keeps_them(source: str, target: str) -> None:
    """At both ends of the source's range, and around every power of two in it."""
    a, b = (getattr(torch, TYPES[n].torch) for n in (source, target))
    if TYPES[source].kind == "float":
        info = torch.finfo(a)
        tried = torch.tensor([info.max, info.min, info.tiny, 1 + info.eps, 3.0], dtype=a)
    else:
        bits = TYPES[source].digits
        low = -(1 << bits) if TYPES[source].kind == "int" else 0
        whole = {low, (1 << bits) - 1, *(p + d for e in range(bits) for p in (1 << e,) for d in (-1, 0, 1))}
        tried = torch.from_numpy(np.array(sorted(v for v in whole if low <= v < 1 << bits), TYPES[source].numpy))
    there = tried.to(b)
    # A number just outside an integer's range may come back by wrapping round; its value there tells.
    same = torch.equal(there.to(a), tried) and there.double().tolist() == tried.double().tolist()
    if TYPES[target].kind == "float" and TYPES[source].kind == "float":
        same = same and TYPES[target].itemsize > TYPES[source].itemsize
    assert keeps_values(source, target) == (same and source != target)
