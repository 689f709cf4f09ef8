"""BackwardBlocks: where a backward's arguments lie, seen and brought about."""

import torch

from dcir.runtime import donation
from dcir.runtime.backward_blocks import BackwardBlocks, window


def blocks():
    """Argument 0 at the beginning of a block and argument 2 behind it."""
    return BackwardBlocks([1024], {0: (0, 0), 2: (0, 512)}, {1: (0, 0)})


def placed(made):
    (block,) = made.take()
    return [
        window(block, 0, (8, 16), (16, 1), torch.float32), None, window(block, 512, (16,), (1,), torch.float32)
    ]  # fmt: skip


def test_arguments_that_lie_where_they_belong():
    made = blocks()
    args = placed(made)
    assert made.hold(args)
    assert not made.hold([args[0], None, args[2].clone()])
    assert not made.hold([torch.empty(8, 16), None, args[2]])


def test_a_block_that_is_too_small():
    block = torch.empty(768, dtype=torch.uint8)
    args = [window(block, 0, (8, 16), (16, 1), torch.float32), None, window(block, 512, (16,), (1,), torch.float32)]
    assert not blocks().hold(args)


def test_copies_lie_in_other_memory():
    made = blocks()
    args = placed(made)
    args[0].fill_(3.0)
    args[2].fill_(5.0)
    before = list(args)
    made.copy_in(args)
    assert made.hold(args) and args[0].data_ptr() != before[0].data_ptr()
    assert (args[0] == 3).all() and (args[2] == 5).all() and args[0].shape == (8, 16)


def test_the_forward_is_told_and_its_arguments_are_spared(monkeypatch):
    """What somebody else holds is copied; what the backward alone has is overwritten."""
    monkeypatch.setattr(donation, "_KEEPS_GRAPH", lambda: False)  # outside of autograd it says that all is kept
    told, seen = [], []
    made = blocks()

    def overwrites(args):
        seen.append([a.data_ptr() for a in (args[0], args[2])])
        return []

    spared = donation.Donation(told.append).backward(overwrites, made)
    assert told == [made]
    args = placed(made)
    own = [args[0].data_ptr(), args[2].data_ptr()]
    spared(args)
    assert seen.pop() == own
    args = placed(made)
    held = args[0]
    spared(args)
    assert held.data_ptr() not in seen.pop()
