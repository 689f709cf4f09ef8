"""What an update leaves as it was: not moved, unless something else than the input's memory is written."""

from __future__ import annotations

from dcir.ir.updates import settle
from dcir.transforms.tier2_fusion.fuse_siblings import FuseSiblings
from dcir.transforms.tier4_movement.keep_in_place import KeepInPlace
from dcir.transforms.tier4_movement.write_in_place import WriteInPlace
from tests.transforms.tier4_movement.test_write_in_place import same, tensors, updating, window


def test_stores_go_one_by_one():
    """Copies that were joined with other work leave it behind."""
    done = updating(window, *tensors())
    net = done.network
    assert WriteInPlace().apply(net).changed
    settle(net)
    FuseSiblings().apply(net)
    settle(net)
    before = net.bytes_moved()
    outcome = KeepInPlace().apply(net)
    assert outcome.changed and outcome.saved_bytes == before - net.bytes_moved() > 0
    same(done, window)


def test_without_the_memory_of_the_input_all_is_written():
    """Scatters into a tensor of their own keep their base."""

    def fresh(x, v, at):
        y = x.index_copy(0, at, v)
        x.add_(1)
        return (y,)

    done = updating(fresh, *tensors())
    WriteInPlace().apply(done.network)
    assert not KeepInPlace().apply(done.network).changed
    same(done, fresh)


def test_nothing_else_is_written():
    """An update that changes nothing keeps its copy: some operator must write it."""

    def untouched(x, v, at):
        x.copy_(x.view(2, 24).view(6, 8))
        return (x + 1,)

    done = updating(untouched, *tensors())
    outcome = KeepInPlace().apply(done.network)
    assert not outcome.changed
    same(done, untouched)
