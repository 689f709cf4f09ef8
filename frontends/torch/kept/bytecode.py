"""The bytecode that Dynamo has a frame run instead, as data: read again, it can do nothing but call the frame's graph.

Bytecode is not marshalled: whatever reads that must believe it. Its parts are put in the place of those of the frame's own code, and
followed first (``replays.py``): it gathers inputs, calls one graph, makes the objects that it returns and writes what was written, and no
stack or variable of it is used before it is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from dcir.frontends.torch.kept.descriptions import Unkept
from dcir.frontends.torch.kept.imports import is_by_address
from dcir.frontends.torch.kept.replays import replayed

_PLAIN = (
    bool, int, float, complex, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
_LARGEST_STACK = 1 << 14


@dataclass(frozen=True)
class KeptCode:
    """Bytecode, its constants, the names that it uses, and what it takes: names of its arguments, cells, and how many of which kind."""

    code: bytes
    constants: tuple[Any, ...]
    names: tuple[str, ...]
    variables: tuple[str, ...]
    form: tuple[Any, ...]


def kept_code(code: CodeType) -> KeptCode:
    """The data of code that hands on.

    Raises:
        Unkept: it does more.
    """
    if any(map(is_by_address, code.co_names)):
        raise Unkept("a frame uses what Dynamo knows by its address")
    if replayed(code) is None or not _are_plain(code.co_consts):
        raise Unkept("a frame does more than call its graph")
    return KeptCode(code.co_code, code.co_consts, code.co_names, code.co_varnames, _form(code))


def code_again(kept: KeptCode, own: CodeType) -> CodeType:
    """The code in the place of a frame's own.

    Raises:
        Unkept: it is of another frame, or does what no kept code does.
    """
    if kept.form != _form(own):
        raise Unkept("it is the frame of another function")
    texts = (*kept.names, *kept.variables)
    if not _are_plain(kept.constants) or type(kept.code) is not bytes or not all(type(t) is str for t in texts):
        raise Unkept("bytecode of another form")
    try:
        made = own.replace(
            co_code=kept.code, co_consts=kept.constants, co_names=kept.names, co_varnames=kept.variables, co_nlocals=len(kept.variables),
            co_exceptiontable=b"", co_linetable=b"", co_stacksize=1,
        )  # fmt: skip
        depth = replayed(made)
    except (ValueError, TypeError, IndexError) as e:
        raise Unkept("bytecode of another form") from e
    if depth is None or depth > _LARGEST_STACK:
        raise Unkept("bytecode that does more than call a graph")
    return made.replace(co_stacksize=depth)


def _are_plain(values: Any) -> bool:
    return all(_are_plain(v) if type(v) is tuple else type(v) in _PLAIN for v in values)


def _form(code: CodeType) -> tuple[Any, ...]:
    """What callers see of code, and its cells."""
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return (
        code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_varnames[:count], code.co_freevars, code.co_cellvars,
    )  # fmt: skip
