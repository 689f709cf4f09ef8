"""What the manifest says of what moves in a compiled network for all sizes within bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dcir.driver.ahead.artefact import Compiled
from dcir.driver.placement import buffer_numbers
from dcir.frontends.torch.export import Leaf
from dcir.ir.moving_network import MovingContainer, MovingNetwork
from dcir.ir.serialize import encode
from dcir.runtime.manifest import Manifest, Output
from dcir.runtime.moving_manifest import Moving, MovingAxis, MovingEntry, MovingLayout, MovingWindow


def moving_of(compiled: Compiled, axes: Sequence[MovingAxis], manifest: Manifest) -> Moving:
    """What moves of a network.

    Args:
        compiled: a network for all sizes.
        axes: the dimensions of the file that it has all sizes of; their parts are the network's sizes.
        manifest: at the greatest sizes.
    """
    net, library = compiled.moving, compiled.library
    assert net is not None and [f"s{i}" for i in range(len(net.sizes))] == list(net.sizes)
    return Moving(
        library.sizes_slot,
        tuple(axes),
        tuple(_layout(net.containers[name]) for name in net.widest.inputs),
        tuple(_layout(net.containers[name]) for name in buffer_numbers(net.widest)),
        tuple(
            _window(compiled, net, out, leaf)
            for out, leaf in zip(manifest.outputs, _leaves(compiled.exported.result), strict=True)
        ),
        tuple(
            MovingEntry(encode(spec), tuple((p.slot, p.offset) for p in ins), tuple((p.slot, p.offset) for p in outs))
            for _, (spec, ins, outs) in sorted(library.callbacks.items())
        ),
    )


def _leaves(value: Any) -> Iterator[Any]:
    """What a result is nested of, in the order of the manifest."""
    if isinstance(value, Mapping | tuple | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(item)
    else:
        yield value


def _layout(container: MovingContainer) -> MovingLayout:
    return MovingLayout(container.shape, container.strides)


def _window(compiled: Compiled, net: MovingNetwork, out: Output, leaf: Any) -> MovingWindow | None:
    """Where a result lies; None for a literal or a whole argument."""
    if not isinstance(leaf, Leaf) or (out.source == "input" and out.shape is None):
        return None
    found = net.results[compiled.imported.outputs[leaf.index][1]]
    return MovingWindow(found.shape, found.strides, found.offset)
