"""Random networks over images of any size are right at all of them; ``python -m tests.fuzz.sized --images`` runs more."""

import pytest

from tests.fuzz.images import image_case
from tests.fuzz.sized import check_sized

pytestmark = pytest.mark.in_turn(3)


@pytest.mark.parametrize("seed", range(9))
def test_random_networks_at_all_sizes(seed):
    check_sized(image_case(seed), train=seed % 2 == 1)


def test_cases_are_networks_at_all_sizes():
    for seed in range(60):
        case = image_case(seed)
        net = case.module().eval()
        for size in case.sizes:
            assert net(*case.call(*size)).isfinite().all()
