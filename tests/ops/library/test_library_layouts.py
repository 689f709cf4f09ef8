"""Layouts of a library's convolution: which one it runs in, what is turned around for it, and what that moves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.library_call import LibraryCall
from dcir.ops.library.library_layouts import channels_last, laid_out, runs_channels_last, turned_bytes
from dcir.ops.library.operand_types import alike

FIRST_X, LAST_X = (150, 25, 5, 1), (150, 1, 30, 6)
FIRST_Y, LAST_Y = (36, 9, 3, 1), (36, 1, 12, 4)
X, Y = 4 * 2 * 6 * 25, 4 * 2 * 4 * 9


def convolution(kind: str, x: tuple[int, ...], y: tuple[int, ...], dtype: str = "f32") -> ConvolutionSpec:
    """6 to 4 channels, 5 x 5 to 3 x 3 places, 2 images."""
    window = ((5, 5), (3, 3), (3, 3), (1, 1), (0, 0), (1, 1))
    return ConvolutionSpec(kind, alike(dtype), 2, 1, 6, 4, *window, x, (54, 9, 3, 1), y)


@pytest.mark.parametrize(("shape", "strides", "answer"), [
    ((2, 6, 5, 5), FIRST_X, False), ((2, 6, 5, 5), LAST_X, True), ((2, 1, 5, 5), (25, 1, 5, 1), None), ((2, 6, 1, 1), (6, 1, 6, 6), None),
    ((2, 3, 7), (21, 7, 1), False), ((2, 3, 7), (21, 1, 3), True),
])  # fmt: skip
def test_what_lies_innermost(shape: tuple[int, ...], strides: tuple[int, ...], answer: bool | None) -> None:
    assert channels_last(shape, strides) is answer


@pytest.mark.parametrize(("kind", "x", "y", "last"), [
    ("forward", FIRST_X, LAST_Y, True), ("forward", LAST_X, FIRST_Y, False),
    ("backward_data", FIRST_X, LAST_Y, False), ("backward_data", LAST_X, FIRST_Y, True),
    ("backward_weight", LAST_X, FIRST_Y, True), ("backward_weight", FIRST_X, LAST_Y, False),
])  # fmt: skip
def test_it_runs_as_its_result_lies_or_the_larger_image(
    kind: str, x: tuple[int, ...], y: tuple[int, ...], last: bool
) -> None:
    assert runs_channels_last(convolution(kind, x, y)) is last


def test_images_in_one_layout_are_not_turned() -> None:
    for kind in ("forward", "backward_data", "backward_weight"):
        assert turned_bytes(convolution(kind, FIRST_X, FIRST_Y)) == turned_bytes(convolution(kind, LAST_X, LAST_Y)) == 0


def test_an_image_in_the_other_layout_is_read_and_written_once_more() -> None:
    assert turned_bytes(convolution("forward", FIRST_X, LAST_Y)) == 2 * X
    assert turned_bytes(convolution("backward_data", FIRST_X, LAST_Y)) == 2 * Y


def test_what_tensor_cores_multiply_is_turned_around_where_channels_are_not_last() -> None:
    spec = convolution("forward", FIRST_X, FIRST_Y, "bf16")
    assert turned_bytes(spec, last_alone=True) == X + Y
    assert turned_bytes(replace(spec, x=LAST_X, y=LAST_Y), last_alone=True) == 0


def test_gaps_are_closed() -> None:
    assert turned_bytes(convolution("forward", (300, 1, 60, 12), LAST_Y)) == 2 * X


def test_an_image_is_laid_out_once() -> None:
    t = torch.arange(300.0).reshape(2, 6, 5, 5)
    turned = laid_out(t, last=True)
    assert turned.stride() == LAST_X and torch.equal(turned, t)
    assert laid_out(turned, last=True) is turned and laid_out(t, last=False) is t


@pytest.mark.parametrize("kind", ["forward", "backward_data", "backward_weight"])
@pytest.mark.parametrize("x", [FIRST_X, LAST_X])
@pytest.mark.parametrize("y", [FIRST_Y, LAST_Y])
def test_a_library_makes_a_result_as_it_is_wanted(kind: str, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    made = LibraryCall(convolution(kind, x, y))
    ins = [torch.randn(300).as_strided(shape, strides) for shape, strides, _ in made.ins]
    (shape, strides, _), result = made.outs[0], made.made(ins)
    assert result.shape == shape
    if kind != "backward_weight":
        assert result.stride() == strides
