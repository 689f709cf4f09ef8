"""Images the other way around are advised where a kernel does nothing but turn them."""

import pytest

from dcir.driver.measure.advice.facts import Update
from dcir.driver.measure.advice.layout import layout
from dcir.report.advice_pieces import Call
from tests.driver.measure.advice.test_facts import facts_of, kernel


def facts(kernels, images, **more):
    return facts_of({(2, None, 4): 10.0}, kernels=kernels, images=images, **more)


TURN = kernel("loops 2x3x4x4: copy", ms=2.0, flops=0, moved=2 * 384, bound="L1")


@pytest.mark.parametrize(("last", "python"), [(False, "torch.channels_last"), (True, "torch.contiguous_format")])
def test_a_copy_of_all_images_need_not_be(last, python):
    (piece,) = layout(facts((kernel(ms=8.0), TURN), ((384, last),)))
    assert (
        piece.call == Call(2, None, 4, turned=True) and piece.gain == pytest.approx(10 / 8) and python in piece.python
    )


def test_other_kernels_turn_no_images():
    assert layout(facts((kernel(ms=8.0), TURN), ())) == []
    assert layout(facts((kernel(ms=8.0), TURN), ((768, False),))) == []
    busy = kernel("loops 2x3x4x4: relu", ms=2.0, flops=96, moved=2 * 384)
    assert layout(facts((busy,), ((384, False),))) == []
    assert layout(facts((TURN,), ((384, False),), mode="train", update=Update("sgd", 1.0, 1))) == []


def test_a_kernel_turns_one_input():
    (piece,) = layout(facts((kernel(ms=8.0), TURN), ((384, False), (384, False))))
    assert piece.gain == pytest.approx(10 / 8)
