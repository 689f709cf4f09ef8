"""Architectures at two sizes through one optimised module: numbers follow eager, and of each it is known what runs the second size.

Every commit takes some of them (``tests/rotation.py``), DCIR_TEST_ALL=1 takes all.
"""

from __future__ import annotations

import pytest
import torch

from tests.endtoend.architectures import ARCHITECTURES
from tests.endtoend.test_architectures import _import_or_skip
from tests.endtoend.two_sizes import ONE_PROGRAM, PIECES, at_two_sizes
from tests.rotation import chosen

_AT_ONCE = 3
_TEXT = {"input_ids": (3, 17), "decoder_input_ids": (3, 9)}
_FEW = "too few values"  # of sizes that are cut without a rest, as far as programs reach
_NO_POLYNOMIAL = "no polynomial of the sizes"

# By name the second size of each input that has another one than `_TEXT`, and what runs it.
EXPECTED: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "transformers-albert": ({}, ONE_PROGRAM),
    "transformers-bart": ({}, ONE_PROGRAM),
    "transformers-bert": ({}, ONE_PROGRAM),
    "transformers-bloom": ({}, ONE_PROGRAM),
    "transformers-deberta-v2": ({}, ONE_PROGRAM),
    "transformers-distilbert": ({}, ONE_PROGRAM),
    "transformers-electra": ({}, ONE_PROGRAM),
    "transformers-falcon": ({}, ONE_PROGRAM),
    "transformers-fnet": ({}, ONE_PROGRAM),
    "transformers-clip": ({"pixel_values": (3, 3, 32, 32)}, ONE_PROGRAM),
    "transformers-gemma": ({}, ONE_PROGRAM),
    "transformers-gpt-neox": ({}, ONE_PROGRAM),
    "transformers-gpt2": ({}, ONE_PROGRAM),
    "transformers-llama": ({}, ONE_PROGRAM),
    "transformers-mistral": ({}, ONE_PROGRAM),
    "transformers-mpnet": ({}, ONE_PROGRAM),
    "transformers-opt": ({}, ONE_PROGRAM),
    "transformers-phi": ({}, ONE_PROGRAM),
    "transformers-qwen2": ({}, ONE_PROGRAM),
    "transformers-roberta": ({}, ONE_PROGRAM),
    "transformers-dinov2": ({"pixel_values": (3, 3, 48, 48)}, ONE_PROGRAM),
    "transformers-mamba": ({}, _FEW),
    "transformers-mixtral": ({}, ONE_PROGRAM),
    "transformers-segformer": ({"pixel_values": (3, 3, 96, 96)}, _FEW),
    "transformers-t5": ({}, ONE_PROGRAM),
    "transformers-vit": ({"pixel_values": (3, 3, 32, 32)}, PIECES),
    "transformers-wav2vec2": ({"input_values": (3, 560)}, ONE_PROGRAM),
    "transformers-whisper-encoder": ({"input_features": (3, 8, 32)}, PIECES),
    "transformers-xlnet": ({}, _NO_POLYNOMIAL),
    "timm-densenet": ({"x": (3, 3, 48, 48)}, ONE_PROGRAM),
    "timm-resnet-basic": ({"x": (3, 3, 96, 96)}, ONE_PROGRAM),
    "timm-resnet-bottleneck": ({"x": (3, 3, 96, 96)}, ONE_PROGRAM),
    "timm-resnext": ({"x": (3, 3, 96, 96)}, ONE_PROGRAM),
    "timm-se-resnet": ({"x": (3, 3, 96, 96)}, ONE_PROGRAM),
}


def test_there_are_enough() -> None:
    assert len(EXPECTED) >= 25 and EXPECTED.keys() <= ARCHITECTURES.keys()
    outcomes = [outcome for _, outcome in EXPECTED.values()]
    assert outcomes.count(ONE_PROGRAM) >= 10 and PIECES in outcomes


@pytest.mark.parametrize("name", list(EXPECTED))
def test_two_sizes(name: str) -> None:
    if name not in chosen(sorted(EXPECTED), _AT_ONCE):
        pytest.skip("architectures that have their turn with another commit; DCIR_TEST_ALL=1 runs all")
    _import_or_skip(name.partition("-")[0])
    sizes, outcome = EXPECTED[name]
    torch.manual_seed(0)
    module, first = ARCHITECTURES[name]()
    second = {}
    for key, value in first.items():
        shape = sizes.get(key, _TEXT.get(key, ()))
        second[key] = torch.randn(shape) if value.is_floating_point() else torch.randint(1, 50, shape)
    seen = at_two_sizes(module, first, second)
    assert not seen.wrong
    assert outcome in seen.outcome
