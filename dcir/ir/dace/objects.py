"""DaCe's arrays, memlets and nodes made from patterns: its constructors set and check every property one by one."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Sequence
from typing import Any

import dace
from dace.data import Array
from dace.sdfg.nodes import AccessNode, Node
from dace.subsets import Range
from sympy import Integer

from dcir.ir.types import TYPES

_ZERO, _ONE = Integer(0), Integer(1)
_MEMLET = dace.Memlet(data="x", subset=Range([(0, 0, 1)]), volume=1)
_ACCESS = AccessNode("x")

DACE_TYPES = {name: getattr(dace, t.dace) for name, t in TYPES.items()}


def whole_memlet(data: str, shape: Sequence[int], volume: int) -> dace.Memlet:
    """A memlet of ``volume`` elements somewhere in the container ``data``: what ``dace.Memlet`` makes, at a tenth of the time."""
    subset = object.__new__(Range)
    subset.ranges = [(_ZERO, Integer(max(d, 1) - 1), _ONE) for d in shape]
    subset.tile_sizes = [_ONE] * len(shape)
    memlet = object.__new__(dace.Memlet)
    memlet.__dict__.update(_MEMLET.__dict__)
    memlet.__dict__.update(_data=data, _subset=subset, _volume=Integer(volume), _guid=str(uuid.uuid4()))
    return memlet


def like(pattern: Node, **fields: Any) -> Node:
    """A node like another, with an identity and tables of its own, and fields that differ."""
    node = object.__new__(type(pattern))
    node.__dict__.update({k: v.copy() if isinstance(v, list | dict) else v for k, v in pattern.__dict__.items()})
    node.__dict__.update(fields, _guid=str(uuid.uuid4()))
    return node


def access_node(data: str) -> AccessNode:
    """What ``dace.sdfg.nodes.AccessNode`` makes."""
    return like(_ACCESS, _data=data)


def array(shape: tuple[int, ...], strides: tuple[int, ...], dtype: dace.typeclass, size: int, transient: bool) -> Array:
    """An array of ``size`` elements: what ``dace.data.Array`` makes, whose constructor runs once for equal arguments."""
    pattern = _pattern(shape, strides, dtype, size, transient)
    new = object.__new__(Array)
    new.__dict__.update(pattern.__dict__)
    new._location = {}
    return new


@functools.lru_cache(maxsize=4096)
def _pattern(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: dace.typeclass, size: int, transient: bool
) -> Array:
    return Array(dtype, list(shape), strides=strides, total_size=size, transient=transient)
