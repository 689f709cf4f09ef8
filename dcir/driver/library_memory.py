"""Memory of a call that no plan has: what libraries make and hold, and what they take while they run."""

from __future__ import annotations

from dcir.cost.target import target_of
from dcir.ir.network import Network
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.library_call import LibraryCall
from dcir.ops.library.library_memory import own_bytes
from dcir.ops.library.torch_call import TorchCall


def library_bytes(net: Network) -> int:
    """The most bytes that calls of libraries have at one time, beyond arena, arguments and results of the network.

    A tensor that a library makes and nobody outside sees lives until the first call behind its last reader (``letting_go``).
    """
    position, ops, shown = net.positions(), net.ops(), net.result_containers()
    calls = [i for i, op in enumerate(ops) if op.spec.calls_out]
    alone = target_of(net).costs.layout.last_alone or frozenset()
    held = [0] * (len(ops) + 1)  # changes
    taken = [0] * len(ops)
    for i in calls:
        spec = ops[i].spec
        if not isinstance(spec, LibraryCall | TorchCall):
            continue
        taken[i] = own_bytes(spec, last_alone=_dtype(spec) in alone)
        if not isinstance(spec, LibraryCall) or not spec.makes:
            continue
        data = net.outs(ops[i])[0].data
        if net.containers[data].role != "result":
            taken[i] += sum(spec.footprint()[1])  # made, and copied to where it belongs
        elif data not in shown:
            last = max((position[r] for r in net.readers(data)), default=i)
            held[i] += net.containers[data].nbytes
            held[_behind(calls, last, len(ops))] -= net.containers[data].nbytes
    most = now = 0
    for i in range(len(ops)):
        now += held[i]
        most = max(most, now + taken[i])
    return most


def _behind(calls: list[int], last: int, end: int) -> int:
    """The first call behind a position, or the end."""
    return next((i for i in calls if i > last), end)


def _dtype(spec: LibraryCall | TorchCall) -> str:
    return spec.of.dtype if isinstance(spec, LibraryCall) and isinstance(spec.of, ConvolutionSpec) else ""
