"""The target "dace": an imported graph as a callable through DaCe's own code generator, a second opinion on ours."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from dcir.frontends.torch.importer import Imported
from dcir.ir.dace.target import compile_network
from dcir.ops.reach import check_call
from dcir.ops.torch_types import FROM_NAME

Flat = np.ndarray[Any, np.dtype[Any]]


def dace_program(
    done: Imported, keep: Callable[[str, str], None] | None = None
) -> Callable[[Sequence[Any]], list[Any]]:
    """The callable program of a network, compiled by DaCe; ``keep`` hears the name and the text of what it generates.

    Operators that run through torch do so here, too, and draw the same random numbers.
    """
    net = done.network
    compiled = compile_network(net, keep)
    lock = threading.Lock()  # DaCe's programs keep their scratch memory between calls

    def run(args: Sequence[Any]) -> list[Any]:
        check_call(args)
        given = {name: arg for name, arg in zip(net.inputs, args, strict=True) if name} | done.constants
        with lock:
            store = compiled([_flat(given[name]) for name in compiled.arguments])
        for new, old in net.updates.items():
            c = net.containers[new]
            elements = torch.from_numpy(store[new]).view(FROM_NAME[c.dtype])
            given[old].detach().copy_(torch.as_strided(elements, c.shape, c.strides))
        out: list[Any] = []
        for kind, value in done.outputs:
            if kind == "literal":
                out.append(value)
                continue
            if kind == "argument":
                out.append(args[value])
                continue
            r = net.results[value]
            if net.containers[r.data].role == "input":
                base = given[r.data]
                out.append(torch.as_strided(base, r.shape, r.strides, r.offset + base.storage_offset()))
            else:
                elements = torch.from_numpy(store[r.data]).view(FROM_NAME[r.dtype])
                out.append(torch.as_strided(elements, r.shape, r.strides, r.offset))
        return out

    return run


def _flat(tensor: torch.Tensor) -> Flat:
    """The elements from the first to the last as stored; bf16 as its bits."""
    tensor = tensor.detach()
    size = (
        0 if tensor.numel() == 0 else 1 + sum((d - 1) * s for d, s in zip(tensor.shape, tensor.stride(), strict=True))
    )
    flat = torch.as_strided(tensor, (size,), (1,))
    array: Flat = flat.view(torch.int16).numpy().view(np.uint16) if flat.dtype == torch.bfloat16 else flat.numpy()
    return array
